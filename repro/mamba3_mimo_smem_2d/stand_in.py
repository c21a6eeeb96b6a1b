"""Makes the real Mamba-3 MIMO kernel factories importable beside a real TileLang, without the compiled extensions of mamba-ssm.

* `mamba_ssm`: its `__init__` imports compiled extensions, so the package is entered without it; every module below is real.
* The packages of ABSENT are imported by these modules and used for nothing here. TileLang is never stood in for.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types

from absent import stand_in_for

ABSENT = ("einops",)


def install() -> None:
    """Makes the factories importable; idempotent. Call before the package is imported."""
    if not stand_in_for(ABSENT):
        return
    spec = importlib.util.find_spec("mamba_ssm")
    package = types.ModuleType("mamba_ssm")
    package.__path__, package.__spec__ = list(spec.submodule_search_locations), spec
    sys.modules["mamba_ssm"] = package


def optional_module(name: str) -> types.ModuleType | None:
    """The module, None where the release has none of that name; a dependency that is missing is raised."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if not (e.name or "").startswith("mamba_ssm"):
            raise
        return None

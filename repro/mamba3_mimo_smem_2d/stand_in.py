"""Makes the real Mamba-3 MIMO kernel factories importable with a real TileLang, without the compiled extensions of mamba-ssm.

* `mamba_ssm`: its `__init__` imports compiled extensions, so the package is entered without it; every module below is real.
* The packages of ABSENT are imported by these modules and used for nothing here. TileLang is never stood in for.
"""

from __future__ import annotations

from absent import enter_without_init, stand_in_for

ABSENT = ("einops",)


def install() -> None:
    """Makes the factories importable; idempotent. Call before the package is imported."""
    if stand_in_for(ABSENT):
        enter_without_init("mamba_ssm")

"""Projects that carry copies of TileLang's sparse-MLA kernels, imported without the training stacks that their packages import."""

from __future__ import annotations

import importlib.util
import itertools
import os
from types import ModuleType

from absent import enter_without_init, optional_module, stand_in_for
from subject_runtime import Unsupported

#: Where the kernels lie, by upstream.
FOLDERS = {
    "nemo-automodel": "nemo_automodel.components.models.glm_moe_dsa.kernels",
    "slime": "slime_plugins.models.glm5.ops",
    "miles": "miles_plugins.models.glm5.ops",
    "prime-rl": "prime_rl.trainer.models.kernels",
}
UPSTREAM = os.environ.get("PATCHBENCH_UPSTREAM", "")
PACKAGE = FOLDERS.get(UPSTREAM, "").split(".")[0]


def carried(name: str) -> ModuleType:
    """A module of the kernels of the upstream under test; Unsupported where the release has none."""
    stand_in_for(["packaging"])
    *parents, _ = itertools.accumulate(FOLDERS[UPSTREAM].split("."), lambda *parts: ".".join(parts))
    for package in (*parents, *(["nemo_automodel.shared"] if UPSTREAM == "nemo-automodel" else [])):
        if importlib.util.find_spec(package) is None:
            raise Unsupported(f"this release has no {package}")
        enter_without_init(package)
    module = optional_module(f"{FOLDERS[UPSTREAM]}.{name}")
    if module is None:
        raise Unsupported("this release has no kernels of sparse MLA")
    return module

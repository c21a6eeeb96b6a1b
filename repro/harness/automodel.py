"""nemo-automodel's kernels of sparse MLA, imported without the training stack that its packages import."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from absent import enter_without_init, optional_module, stand_in_for
from subject_runtime import Unsupported

KERNELS = "nemo_automodel.components.models.glm_moe_dsa.kernels"


def glm_kernels(name: str) -> ModuleType:
    """A module of the kernels for GLM's sparse attention; Unsupported where the release has none."""
    stand_in_for(["packaging"])
    for package in (*(KERNELS.rsplit(".", count)[0] for count in (4, 3, 2, 1)), "nemo_automodel.shared"):
        if importlib.util.find_spec(package) is None:
            raise Unsupported(f"this release has no {package}")
        enter_without_init(package)
    module = optional_module(f"{KERNELS}.{name}")
    if module is None:
        raise Unsupported("this release has no kernels for GLM")
    return module

"""The installed mamba-ssm, for the mitigations of its Mamba-3 kernels."""

from __future__ import annotations

import importlib.metadata
import sys

PACKAGE = "mamba_ssm"


def version() -> str:
    """What the package itself says, else its metadata; "unknown" where there are none."""
    try:
        return getattr(sys.modules[PACKAGE], "__version__", None) or importlib.metadata.version("mamba-ssm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

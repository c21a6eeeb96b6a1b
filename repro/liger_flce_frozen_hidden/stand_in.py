"""What the real package looks up and this machine lacks: liger-kernel 0.5.4 asks `torch.hip.is_available()`, which no torch release has."""

from __future__ import annotations

import types

import torch


def install() -> None:
    """Puts the missing name in place; idempotent. Call before the package is imported."""
    if not hasattr(torch, "hip"):
        torch.hip = types.SimpleNamespace(is_available=lambda: False)

"""Evidence for the stand-ins of the mitigations' tests."""

from __future__ import annotations

import pytest
from patchbench_mitigations import fingerprint, registry


def speaks_for(monkeypatch: pytest.MonkeyPatch, *versions: str) -> None:
    """From here on these versions count as measured, whatever their functions' sources are, and no others."""

    def why_unmeasured(slug: str, version: str, keys: object) -> str:
        return "" if version in versions else f"{registry.data_of(slug)['package']} {version} was not measured"

    monkeypatch.setattr(fingerprint, "why_unmeasured", why_unmeasured)

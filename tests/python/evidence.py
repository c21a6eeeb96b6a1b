"""Evidence for the stand-ins of the mitigations' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from patchbench_mitigations import fingerprint, registry


def speaks_for(monkeypatch: pytest.MonkeyPatch, *versions: str) -> None:
    """From here on these versions count as measured, whatever their functions' sources are, and no others."""

    def measured_as(slug: str, version: str, keys: object) -> tuple[str, str]:
        return (version, "") if version in versions else ("", f"not verified on {registry.data_of(slug)['package']} {version}")

    monkeypatch.setattr(fingerprint, "measured_as", measured_as)


def install_stand_in(folder: Path, project: str, version: str, modules: dict[str, str]) -> None:
    """Puts a package into a folder of the import path, with its metadata: the text of each module, by its file below the folder."""
    for file, text in modules.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in path.parents[: len(Path(file).parts) - 1]:
            (package / "__init__.py").touch()
        path.write_text(text)
    info = folder / f"{project.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n")

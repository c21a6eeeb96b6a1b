"""Entering a package whose `__init__` cannot run here, and asking for a module that a release may not have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "repro/harness"))

from absent import enter_without_init, optional_module  # noqa: E402


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "heavy_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('a compiled extension')\n")
    (folder / "plain.py").write_text("VALUE = 3\n")
    (folder / "needy.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("heavy_package", "heavy_package.plain"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "heavy_package"


def test_its_modules_are_real_and_its_init_is_not_run(package: str) -> None:
    enter_without_init(package)
    assert optional_module(f"{package}.plain").VALUE == 3


def test_a_module_that_is_not_there_is_none_and_a_missing_dependency_is_raised(package: str) -> None:
    enter_without_init(package)
    assert optional_module(f"{package}.later") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        optional_module(f"{package}.needy")

"""What PATCHBENCH_MITIGATE means, and that nothing acts before its upstream module is imported."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

MITIGATIONS = Path(__file__).parents[2] / "mitigations"
sys.path.insert(0, str(MITIGATIONS))

from patchbench_mitigations import fingerprint, registry  # noqa: E402

SLUG = "liger_flce_none_bwd"


def test_each_mitigation_offers_the_four_calls() -> None:
    assert SLUG in registry.slugs()
    for slug in registry.slugs():
        module = registry.module_of(slug)
        for name in ("probe", "enable", "disable", "status"):
            assert callable(getattr(module, name)), f"{slug} lacks {name}"
        assert slug == module.SLUG and registry.data_of(slug)["modes"][0] == registry.MODE_AUTO
        # The manifest declares the modes; the module does what each one says.
        text = Path(module.__file__).read_text()
        assert all(mode in text for mode in registry.data_of(slug)["modes"][1:]), slug


def test_parse_reads_slugs_and_modes() -> None:
    assert registry.parse("") == []
    assert registry.parse(SLUG) == [(SLUG, "auto")]
    assert registry.parse(f" {SLUG}:plain ,") == [(SLUG, "plain")]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("liger_flce_none_bwb", "did you mean liger_flce_none_bwd"),
        ("x", "one of: "),
        (f"{SLUG}:fast", "has no mode 'fast'; one of: auto, op, plain"),
        (f"{SLUG},{SLUG}:plain", "named twice"),
    ],
)
def test_parse_refuses_by_name(value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        registry.parse(value)


def run(code: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with the mitigations and `folder` on its path."""
    (folder / "late_module.py").write_text("print('late executed')\n")
    path = ":".join([str(MITIGATIONS), str(folder), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **env},
    )


def test_acts_once_right_after_the_module_is_executed(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom patchbench_mitigations import registry\n"
        "registry.when_imported('late_module', lambda: print('acted'))\n"
        "print('late_module' in sys.modules)\nimport late_module\nimport importlib\nimportlib.reload(late_module)\n"
        "registry.when_imported('late_module', lambda: print('at once'))\n"
    )
    assert run(code, tmp_path).stdout.split("\n")[:-1] == ["False", "late executed", "acted", "late executed", "at once"]


def test_what_the_act_raises_the_import_raises(tmp_path: Path) -> None:
    code = (
        "from patchbench_mitigations import registry\n"
        "def act(): raise registry.Refused('not here')\n"
        "registry.when_imported('late_module', act)\nimport late_module\n"
    )
    result = run(code, tmp_path)
    assert result.returncode == 1 and result.stderr.strip().endswith("Refused: not here")


@pytest.mark.parametrize("value", ["", "off", SLUG, f"{SLUG}:plain"])
def test_auto_imports_no_upstream(tmp_path: Path, value: str) -> None:
    code = "import patchbench_mitigations.auto, sys\nprint('liger_kernel' in sys.modules)"
    result = run(code, tmp_path, PATCHBENCH_MITIGATE=value)
    assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr


def test_a_wrong_word_stops_the_import_of_auto(tmp_path: Path) -> None:
    result = run("import patchbench_mitigations.auto", tmp_path, PATCHBENCH_MITIGATE="liger")
    assert result.returncode == 1 and "no mitigation 'liger'" in result.stderr


def test_waits_until_no_import_of_the_package_that_led_to_it_is_under_way(tmp_path: Path) -> None:
    """The package is half imported when the awaited module has been executed; a part that fails does not keep it from acting."""
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer/__init__.py").write_text("import outer.early\nversion = 1\n")
    (tmp_path / "outer/early.py").write_text("import outer.awaited\nx = 2\n")
    (tmp_path / "outer/awaited.py").write_text("")
    (tmp_path / "outer/broken.py").write_text("import outer.awaited\n1 / 0\n")
    watch = (
        "import sys\nfrom patchbench_mitigations import registry\n"
        "def act():\n    outer = sys.modules['outer']\n    print('acted', vars(outer).get('version'), hasattr(outer, 'early'))\n"
        "registry.when_imported('outer.awaited', act, 'outer')\nregistry.when_imported('outer.awaited', act)\n"
    )
    found = run(watch + "import outer\nprint('end')\nimport importlib\nimportlib.reload(outer)", tmp_path)
    assert found.stdout.splitlines() == ["acted None False", "acted 1 True", "end"], found.stderr
    (tmp_path / "outer/__init__.py").write_text("")
    late = "try:\n    import outer.broken\nexcept ZeroDivisionError:\n    print('failed')\n"
    assert run(watch + late, tmp_path).stdout.splitlines() == ["acted None False", "acted None False", "failed"]
    (tmp_path / "outer/__init__.py").write_text("import outer.awaited\n1 / 0\n")
    assert run(watch + late, tmp_path).stdout.splitlines() == ["acted None False", "failed"]


def test_the_version_is_that_of_the_distribution_whose_file_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, version in (("elsewhere", "9"), ("here", "1.5")):
        (tmp_path / folder / "owned").mkdir(parents=True)
        (tmp_path / folder / "owned/__init__.py").write_text("")
        (tmp_path / folder / f"own_ed-{version}.dist-info").mkdir()
        (tmp_path / folder / f"own_ed-{version}.dist-info/METADATA").write_text(
            f"Metadata-Version: 2.1\nName: own-ed\nVersion: {version}\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    monkeypatch.syspath_prepend(str(tmp_path / "checkout"))
    (tmp_path / "checkout/owned/part").mkdir(parents=True)
    (tmp_path / "checkout/owned/__init__.py").write_text("")
    (tmp_path / "checkout/owned/package_info.py").write_text("__version__ = '2.0rc0'\n")
    for path, wanted in (("checkout", "2.0rc0"), ("here", "1.5")):
        monkeypatch.syspath_prepend(str(tmp_path / path))
        for name in [name for name in sys.modules if name.partition(".")[0] == "owned"]:
            del sys.modules[name]
        importlib.invalidate_caches()
        importlib.import_module("owned")
        assert fingerprint.installed_version("own-ed", "owned") == wanted
    origin = {"url": f"file://{tmp_path}/here", "dir_info": {"editable": True}}
    (tmp_path / "elsewhere/own_ed-9.dist-info/direct_url.json").write_text(json.dumps(origin))
    (tmp_path / "here/own_ed-1.5.dist-info/METADATA").unlink()
    (tmp_path / "here/own_ed-1.5.dist-info").rmdir()
    assert fingerprint.installed_version("own-ed", "owned") == "9"
    del sys.modules["owned"]
    sys.modules.pop("owned.package_info", None)

"""What PATCHBENCH_MITIGATE means, and that nothing acts before its upstream module is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MITIGATIONS = Path(__file__).parents[2] / "mitigations"
sys.path.insert(0, str(MITIGATIONS))

from patchbench_mitigations import registry  # noqa: E402

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

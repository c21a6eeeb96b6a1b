"""`import patchbench`: its answers are the program's, its errors have the program's words, and it finds what was installed."""

from __future__ import annotations

import enum
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "runner/python"))
import patchbench  # noqa: E402

PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build/cpu") / "bin/patchbench"
NUM_PACKS = len(list(ROOT.glob("packs/*/manifest.json")))
EVIDENCE = ROOT / "reports/evidence/mamba3_mimo_smem_2d/cpu.jsonl"
NEW_FILE = "Subject: a\n\nFile: a.txt\nBlob: new\nResult: 9766475a4185a151dc9d56d614ffb9aaea3bfd42\n\n0a\nok\n.\nw\n"


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The program of this build, with a ledger of the test's own."""
    monkeypatch.setenv("PATCHBENCH_PROGRAM", str(PROGRAM))
    monkeypatch.setenv("PATCHBENCH_ROOT", str(ROOT))
    monkeypatch.setenv("PATCHBENCH_LEDGER", str(tmp_path / "ledger.db"))


def asked(*words: str) -> object:
    return json.loads(subprocess.run([PROGRAM, "--json", *words], capture_output=True, check=True).stdout)


def test_packs_are_those_of_the_list() -> None:
    packs = patchbench.packs()
    assert [p.slug for p in packs] == [row["slug"] for row in asked("list")] and len(packs) == NUM_PACKS
    assert all(p.upstreams and p.title and p.number for p in packs)


def test_windows_and_verdicts_are_those_of_the_status() -> None:
    slug = "liger_flce_none_bwd"
    document = asked("status", slug)
    assert len(patchbench.verdicts(slug)) == len(document["cells"])
    windows = patchbench.windows(slug)
    assert len(windows) == sum(len(pack["windows"]) for pack in document["packs"])
    on_cpu = next(w for w in windows if w.device == "cpu")
    assert on_cpu.intervals[-1].last_bad == "0.8.1" and any(r.version == "0.8.0" and len(r.verdict) == 64 for r in on_cpu.releases)


def test_an_error_has_the_words_of_the_program() -> None:
    with pytest.raises(patchbench.UsageError, match='^no pack "liger_flce_none_bwb"; did you mean liger_flce_none_bwd'):
        patchbench.windows("liger_flce_none_bwb")
    with pytest.raises(patchbench.UsageError, match="no ledger there"):
        patchbench.Ledger("/nowhere/ledger.db").verify()


def test_a_program_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATCHBENCH_PROGRAM", "/nowhere/patchbench")
    with pytest.raises(patchbench.NotRunnableError, match="^/nowhere/patchbench: No such file"):
        patchbench.packs()


def test_a_ledger_takes_records_and_gives_them_back(tmp_path: Path) -> None:
    ledger = patchbench.Ledger(tmp_path / "a.db")
    new = ledger.import_records(EVIDENCE)
    report = ledger.verify()
    assert report.ok and report.count == new > 0 and ledger.import_records(EVIDENCE) == 0
    assert ledger.verify((report.count, report.head)).ok
    assert not ledger.verify((report.count + 1, report.head)).ok
    lines = ledger.records("mamba3_mimo_smem_2d")
    assert len(lines) == new and not lines[0].is_counted
    assert ledger.show(lines[0].record)["digest"].startswith(lines[0].record)
    assert sum(1 for _ in ledger.statements()) == new
    assert ledger.export(tmp_path / "a.jsonl") == (report.count, report.head)
    ledger.evict(lines[0].record, "a test")
    assert ledger.verify().count == new + 1


def test_an_edit_is_read_and_applied(tmp_path: Path) -> None:
    for file in sorted(ROOT.glob("patches/*/0001-*.edit")):
        edit = patchbench.Edit.load(file)
        assert edit.field("Subject") and edit.files and all(f.script.endswith("w\n") for f in edit.files), file
    mutant = ROOT / "patches/te_fused_ce/mutant-first-gradient.edit"
    edit = patchbench.Edit.load(mutant)
    assert "\nOver: 0001-" in mutant.read_text() and edit.field("Over") == "" and len(edit.files) == 3
    with pytest.raises(patchbench.UsageError, match="^mutant-a.edit: Over: "):
        patchbench.Edit.parse(mutant.read_text(), "mutant-a.edit")
    edit = patchbench.Edit.parse(NEW_FILE)
    assert edit.apply("a.txt") == b"ok\n" and (edit.files[0].blob, edit.field("Base")) == ("", "")
    with pytest.raises(patchbench.UsageError, match="does not change 'b.txt'"):
        edit.apply("b.txt")
    with pytest.raises(patchbench.UsageError, match="a.txt"):
        edit.apply("a.txt", b"not empty")
    with pytest.raises(patchbench.UsageError, match="^0002-a.edit:1: "):
        patchbench.Edit.parse("nonsense", "0002-a.edit")
    with pytest.raises(patchbench.UsageError, match="No such file"):
        patchbench.Edit.load(tmp_path / "none.edit")


def test_a_number_without_a_record_is_a_problem() -> None:
    assert patchbench.lint_claims(text="Nothing is counted here.\n") == []
    (problem,) = patchbench.lint_claims(text="First line.\nIt is 3.5 times as fast.\n")
    assert (problem.line, problem.what) == (2, "3.5 times") and problem.todo
    with pytest.raises(ValueError, match="either a file or text"):
        patchbench.lint_claims()


def test_a_scan_knows_a_hit_from_a_release_without_the_bug(tmp_path: Path) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text("liger-kernel==0.8.0\n")
    found = patchbench.scan(listed)
    assert [a.slug for a in found.hits] == ["liger_flce_none_bwd", "liger_flce_frozen_hidden"] and found.hits[0].record and found.command
    listed.write_text("liger-kernel==99.0\n")
    (answer,) = patchbench.scan(listed).of("liger_flce_none_bwd")
    assert answer.state is patchbench.State.UNKNOWN and answer.why
    listed.write_text("numpy==2.0\n")
    assert {a.state for a in patchbench.scan(listed).answers} == {patchbench.State.NOT_INSTALLED}


def test_nothing_imports_torch() -> None:
    words = "import patchbench, patchbench.pytest_plugin, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", words], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)


def untyped(public: object, name: str) -> list[str]:
    """What a reader or a type checker misses in a public name: a docstring, the type of an argument or of a result."""
    members = [(name, public)]
    if inspect.isclass(public) and not issubclass(public, enum.Enum):
        members += [(f"{name}.{key}", value) for key, value in vars(public).items() if not key.startswith("_")]
    out = []
    for at, one in members:
        function = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
        if not (inspect.isclass(function) or inspect.isfunction(function)):
            continue
        out += [f"{at}: no docstring"] * (not function.__doc__)
        if inspect.isfunction(function):
            signature = inspect.signature(function)
            arguments = [given for key, given in signature.parameters.items() if key not in ("self", "cls")]
            out += [f"{at}({given.name}): no type" for given in arguments if given.annotation is given.empty]
            out += [f"{at}: no type"] * (signature.return_annotation is signature.empty)
    return out


def test_every_public_name_has_types_and_a_docstring() -> None:
    assert (ROOT / "runner/python/patchbench/py.typed").exists()
    assert [what for name in patchbench.__all__ for what in untyped(getattr(patchbench, name), name)] == []

    def bare(a, b: int = 0): ...

    assert untyped(bare, "bare") == ["bare: no docstring", "bare(a): no type", "bare: no type"]


def test_an_installed_program_finds_what_lies_with_it(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "share").mkdir()
    shutil.copy(PROGRAM, tmp_path / "bin/patchbench")
    (tmp_path / "share/patchbench").symlink_to(ROOT)
    env = {k: v for k, v in os.environ.items() if k != "PATCHBENCH_ROOT"}
    found = subprocess.run([tmp_path / "bin/patchbench", "--json", "list"], env=env, capture_output=True, text=True, check=True)
    assert len(json.loads(found.stdout)) == NUM_PACKS
    (tmp_path / "share/patchbench").unlink()
    (tmp_path / "share/patchbench/packs").mkdir(parents=True)
    empty = subprocess.run([tmp_path / "bin/patchbench", "--json", "list"], env=env, capture_output=True, text=True, check=True)
    assert json.loads(empty.stdout) == []


def test_the_packages_have_one_version_and_the_judge_the_locked_torch() -> None:
    version = re.search(r"project\(patchbench VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    for name in ("mitigations", "repro/wheel", "runner/python/native"):
        text = (ROOT / name / "pyproject.toml").read_text()
        assert re.search(r'^version = "(.*)"$', text, re.M)[1] == version, name
    rows = {
        lock: re.findall(r"^\w[^#\n]*\n(?:    --hash.*\n)+", (ROOT / f"env/locks/{lock}.txt").read_text(), re.M)
        for lock in ("judge", "torch-2.11")
    }
    assert len(rows["judge"]) == 3 and set(rows["judge"]) <= set(rows["torch-2.11"])

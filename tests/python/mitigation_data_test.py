"""The data that the mitigations ship are what the committed evidence supports."""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "mitigations"))

from patchbench_mitigations import registry  # noqa: E402


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """One for all tests: it reads the evidence and the archives once."""
    spec = importlib.util.spec_from_file_location("mitigation_data", ROOT / "env" / "mitigation_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.data_of = functools.cache(module.data_of)  # reads every archive
    return module


def test_a_fresh_generation_is_what_is_committed(generator: ModuleType, capsys: pytest.CaptureFixture) -> None:
    assert generator.main(["--check"]) == 0, capsys.readouterr().out
    assert generator.main(["--chek"]) == 2


def test_a_typed_version_is_noticed(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    shutil.copytree(generator.PACKAGE, tmp_path / "copy")
    monkeypatch.setattr(generator, "PACKAGE", tmp_path / "copy")
    shutil.copy(generator.README, tmp_path)
    monkeypatch.setattr(generator, "README", tmp_path / "README.md")
    file = tmp_path / "copy" / "data" / "liger_flce_none_bwd.json"
    data = json.loads(file.read_text())
    data["releases"]["99.0"] = data["releases"]["0.8.0"]
    file.write_text(json.dumps(data, indent=1) + "\n")
    assert generator.main(["--check"]) == 1
    assert "data/liger_flce_none_bwd.json is not what the evidence supports" in capsys.readouterr().out
    assert generator.main([]) == 0 and generator.main(["--check"]) == 0


def test_the_readme_names_every_device_of_the_records(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = (ROOT / "mitigations" / "README.md").read_text()
    rows = {tuple(line.strip("| ").split(" | ")[:2]) for line in text.splitlines() if line.startswith("| `")}
    verified = set()
    for pack in (ROOT / "packs").glob("*/manifest.json"):
        for verdict in generator.verdicts(pack.parent.name):
            if verdict["sentinel"] == "MITIGATION_VERIFIED":
                verified.add((f"`{pack.parent.name}`", verdict["context"]["machine"]["device"]))
    assert verified and verified <= rows, verified - rows
    assert ("`sparse_mla_pdp_precision`", "NVIDIA H200 (sm_90)") in rows
    (tmp_path / "README.md").write_text(text.replace("NVIDIA H200", "NVIDIA A100", 1))
    monkeypatch.setattr(generator, "README", tmp_path / "README.md")
    assert generator.main(["--check"]) == 1 and "mitigations/README.md does not show" in capsys.readouterr().out
    assert generator.main([]) == 0 and generator.main(["--check"]) == 0 and (tmp_path / "README.md").read_text() == text


def test_evidence_that_grants_nothing(generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a run outside a sandbox, nor one of an edited release, nor of another archive of that version, nor of a named mode, nor
    one that is dated after today."""
    archives = {"1.0": "aa", "1.1": "bb", "1.2": "dd"}
    pins = {"project": "toy", "releases": [{"version": version, "sha256": sha256} for version, sha256 in archives.items()]}
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    folder = tmp_path / "reports" / "evidence" / "toy"
    folder.mkdir(parents=True)

    def record(version: str, sha256: str, sentinel: str, why: str = "", **context: object) -> str:
        pin = {"upstream": "toy", "version": version, "sha256": sha256}
        held = {"pin": pin, "started": "2026", "sandbox": {"isolated": True}, **context}
        question = {"question": "reproduce", "subject": "upstream"}
        predicate = {"context": held, "sentinel": sentinel, "question": question, "why": why}
        return json.dumps({"predicate": predicate, "predicateType": "urn:patchbench:verdict:v1"}) + "\n"

    verified = "MITIGATION_VERIFIED"
    (folder / "cpu.jsonl").write_text(
        record("1.0", "aa", "BUG_REPRODUCED(wrong)") + record("1.0", "aa", "BUG_ABSENT", started="2026-02")
        + record("1.0", "aa", verified, sandbox={"isolated": False}) + record("1.0", "aa", verified, edits=["x"])
        + record("1.0", "aa", f"{verified}(exact)") + record("1.0", "cc", verified)
        + record("1.1", "bb", "NONE", "control a is unsupported: no such code")
        + record("1.2", "dd", "NONE", "1 of 2 triggers could not be judged")
        + record("git:0", "", verified, pin={"upstream": "toy"}) + record("1.0", "aa", verified, started="2999-01-01T00:00:00Z")
    )  # fmt: skip
    seen = {"1.0": {"seen": "wrong"}, "1.1": {"seen": "unsupported"}, "1.2": {"seen": "unresolved"}}
    assert generator.releases("toy", pins, "toy", []) == seen


def test_each_slug_with_modes_has_a_module_and_each_other_says_why_not() -> None:
    for slug in registry.known():
        data = registry.data_of(slug)
        is_module = (ROOT / "mitigations" / "patchbench_mitigations" / f"{slug}.py").exists()
        assert is_module == ("modes" in data) != ("not_needed" in data), slug
        assert is_module or data["not_needed"]["records"], slug

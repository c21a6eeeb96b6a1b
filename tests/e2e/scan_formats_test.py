"""What `patchbench scan` writes for other programs, what it reads back, and its list of ignored packs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from answers import PROGRAM, ROOT
from scan_test import CACHE, LIGER, document, install, scan, uv_lock

sys.path.insert(0, str(ROOT / "tests/python"))
import installed_check  # noqa: E402

ID = "PATCHBENCH-09-liger-kernel"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A hit, one that is unknown and one that is right."""
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.0"), ("megatron-core", "99.0"), ("mamba-ssm", "2.3.1")))
    return tmp_path


def check_sarif(log: dict[str, Any]) -> list[dict[str, Any]]:
    """SARIF 2.1.0, the parts that are used: required keys, closed sets, rules that are declared, lines from 1 on. Returns the results."""
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json") and set(log) <= {"$schema", "version", "runs"}
    (run,) = log["runs"]
    assert set(run) <= {"tool", "invocations", "results", "columnKind"} and run["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    driver = run["tool"]["driver"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert driver["name"] and len(rules) == len(set(rules)) and all(rule["shortDescription"]["text"] for rule in driver["rules"])
    assert all(isinstance(one["executionSuccessful"], bool) and isinstance(one["exitCode"], int) for one in run["invocations"])
    for result in run["results"]:
        assert set(result) <= {"ruleId", "level", "message", "locations", "partialFingerprints", "suppressions", "baselineState"}
        assert result["ruleId"] in rules and result["level"] in ("none", "note", "warning", "error") and result["message"]["text"]
        for location in result["locations"]:
            place = location["physicalLocation"]
            assert re.fullmatch(r"(file:///)?[A-Za-z0-9/._~%-]+", place["artifactLocation"]["uri"])
            assert place.get("region", {"startLine": 1})["startLine"] >= 1
        assert all(re.fullmatch("[0-9a-f]{64}", mark) for mark in result["partialFingerprints"].values())
        for one in result.get("suppressions", []):
            assert one["kind"] in ("inSource", "external") and one["justification"]
    return run["results"]


def test_the_validator_of_sarif_refuses(folder: Path) -> None:
    log = json.loads(scan("uv.lock", "--format", "sarif", cwd=folder).stdout)
    result = ("runs", 0, "results", 0)
    for path, value in ((("version",), "2.0"), ((*result, "level"), "fatal"), ((*result, "ruleId"), "other"),
                        ((*result, "locations", 0, "physicalLocation", "region", "startLine"), 0)):  # fmt: skip
        wrong: Any = json.loads(json.dumps(log))
        at = wrong
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value
        with pytest.raises(AssertionError):
            check_sarif(wrong)


def test_sarif_lies_at_the_line_and_keeps_its_fingerprint(folder: Path) -> None:
    def results() -> dict[str, dict[str, Any]]:
        return {one["ruleId"]: one for one in check_sarif(json.loads(scan("uv.lock", "--format", "sarif", cwd=folder).stdout))}

    first = results()
    place = first[ID]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "uv.lock"}, "region": {"startLine": 5}} and first[ID]["level"] == "error"
    assert first["PATCHBENCH-01-megatron-core"]["level"] == "warning", "what is unknown is shown"
    (folder / "uv.lock").write_text("# one line more\n" + (folder / "uv.lock").read_text())
    moved = results()
    assert moved[ID]["locations"][0]["physicalLocation"]["region"]["startLine"] == 6
    assert {key: one["partialFingerprints"] for key, one in first.items()} == {
        key: one["partialFingerprints"] for key, one in moved.items()
    }
    (folder / "uv.lock").write_text((folder / "uv.lock").read_text().replace("0.8.0", "0.8.1"))
    assert results()[ID]["partialFingerprints"] != first[ID]["partialFingerprints"]


def test_cyclonedx_says_what_is_known_of_each_product(folder: Path) -> None:
    bom = json.loads(scan("uv.lock", "--format", "cyclonedx", cwd=folder).stdout)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    refs = {component["bom-ref"] for component in bom["components"]}
    assert all(affected["ref"] in refs for one in bom["vulnerabilities"] for affected in one["affects"])
    analysis = {(one["id"], one["affects"][0]["ref"]): one["analysis"]["state"] for one in bom["vulnerabilities"]}
    assert analysis[ID, "pkg:pypi/liger-kernel@0.8.0"] == "exploitable"
    assert analysis["PATCHBENCH-01-megatron-core", "pkg:pypi/megatron-core@99.0"] == "in_triage"
    assert analysis["PATCHBENCH-05-mamba-ssm", "pkg:pypi/mamba-ssm@2.3.1"] == "not_affected"


def cyclonedx_errors(*documents: str) -> list[str]:
    """What the published schema has against each document, "" for nothing. cyclonedx-python-lib carries the schema."""
    lock, folders = ROOT / "env/locks/schemas.txt", CACHE.parent / "env"
    named = subprocess.run([sys.executable, ROOT / "env/fetch.py", "names", lock], capture_output=True, text=True, check=True)
    names = named.stdout.split()
    site = next((folders / name for name in names if f"-cp3{sys.version_info[1]}-" in name and (folders / name).exists()), None)
    if site is None:
        pytest.skip("the validator is not in the cache; run env/bootstrap.sh --tests")
    words = """import json, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
print(json.dumps([str(JsonStrictValidator(SchemaVersion.V1_6).validate_str(one) or "") for one in json.load(sys.stdin)]))"""
    found = subprocess.run([sys.executable, "-c", words], input=json.dumps(documents), env={**os.environ, "PYTHONPATH": str(site)},
                           capture_output=True, text=True, check=True)  # fmt: skip
    return json.loads(found.stdout)


def test_cyclonedx_holds_its_published_schema(folder: Path) -> None:
    """Hits, right and unknown releases, packages that are not pinned, ignored packs, our edit, and nothing at all."""
    (folder / ".patchbench.toml").write_text(f'[[ignore]]\npack = "{LIGER}"\nreason = "a, b"\nuntil = 2999-01-01\n')
    (folder / "r.txt").write_text("numpy>=1\nliger-kernel==0.8.0\ntransformer-engine==2.20.2\nmegatron-core==0.19.2\n")
    (folder / "none.txt").write_text("numpy==1.0\n")
    documents = [scan(name, "--format", "cyclonedx", cwd=folder).stdout for name in ("uv.lock", "r.txt", "none.txt")]
    assert cyclonedx_errors(*documents) == ["", "", ""]
    wrong = json.loads(documents[0])
    wrong["vulnerabilities"][0]["analysis"]["state"] = "hit"
    assert "hit" in cyclonedx_errors(json.dumps(wrong))[0]


def test_every_format_has_the_same_hits(tmp_path: Path) -> None:
    assert installed_check.check_formats(str(PROGRAM), tmp_path)


def test_openvex_is_read_back(folder: Path) -> None:
    vex = json.loads(scan("uv.lock", "--format", "openvex", cwd=folder).stdout)
    by_name = {one["vulnerability"]["name"]: one for one in vex["statements"]}
    assert (by_name[ID]["status"], by_name["PATCHBENCH-01-megatron-core"]["status"]) == ("affected", "under_investigation")
    assert by_name["PATCHBENCH-05-mamba-ssm"]["impact_statement"] and by_name[ID]["action_statement"]

    def status(**changed: Any) -> int:
        statements = [one | (changed if one["status"] != "not_affected" else {}) for one in vex["statements"]]
        (folder / "vex.json").write_text(json.dumps(vex | {"statements": statements}))
        return scan("uv.lock", "--vex", "vex.json", cwd=folder).returncode

    assert status() == 1, "its own document as it is hides nothing"
    assert status(status="not_affected", justification="vulnerable_code_not_in_execute_path") == 0
    assert status(status="fixed") == 0
    assert status(status="not_affected") == 2, "without a reason it does not act"
    assert status(status="fixed", products=[{"@id": "pkg:pypi/liger-kernel@0.8.1"}]) == 1
    assert status(status="fixed", products=[{"@id": "pkg:pypi/liger-kernel"}]) == 3
    (folder / "uv.lock").write_text(uv_lock(("megatron-core", "0.19.2")))
    own = scan("uv.lock", "--format", "openvex", cwd=folder).stdout
    (folder / "vex.json").write_text(own)
    (folder / "uv.lock").write_text(uv_lock(("megatron-core", "0.19.2"), ("transformer-engine", "2.20.2")))
    rows = document("uv.lock", "--vex", "vex.json", cwd=folder)[1]["answers"]
    assert not [one for one in rows if one["ignored"]], "no hit without a second package is not a statement about one with it"
    (folder / "vex.json").write_text("{}")
    assert "is not an OpenVEX document" in scan("uv.lock", "--vex", "vex.json", cwd=folder).stderr


def test_ignored_packs_act_until_their_day(folder: Path) -> None:
    def ignore(text: str) -> Any:
        (folder / ".patchbench.toml").write_text(text)
        return scan("uv.lock", "--pack", f"{LIGER},sparse_mla_dims", cwd=folder)

    entry = f'[[ignore]]\npack = "{LIGER}"\nreason = "we use mean alone"\nuntil = 2999-01-01\n'
    found = ignore(entry)
    assert found.returncode == 3 and "ignored: .patchbench.toml until 2999-01-01: we use mean alone" in found.stdout
    found = ignore(entry.replace("2999", "2020"))
    assert found.returncode == 1 and "note: .patchbench.toml:1: the entry for liger_flce_none_bwd expired on 2020-01-01" in found.stdout
    for wrong, said in ((entry.replace("until = 2999-01-01\n", ""), "needs until"), (entry.replace("pack", "pck"), 'did you mean pack?'),
                        (entry.replace(LIGER, "liger_flce"), "no pack"), (entry.replace("2999-01-01", '"soon"'), "must be a day"),
                        ("ignore = 3\n", "[[ignore]]"), ("[[ignore]\n", "is not TOML"), ('other = 1\n', "unknown key")):  # fmt: skip
        found = ignore(wrong)
        assert found.returncode == 2 and said in found.stderr and found.stderr.count("\n") == 1, found.stderr
    (folder / "other.toml").write_text(entry)
    (folder / ".patchbench.toml").unlink()
    assert scan("uv.lock", "--config", "other.toml", "--pack", f"{LIGER},sparse_mla_dims", cwd=folder).returncode == 3


def test_lines_for_github_and_pages(folder: Path) -> None:
    found = scan("uv.lock", "--format", "github", cwd=folder).stdout.splitlines()
    assert any(line.startswith(f"::error file=uv.lock,line=5,title={ID}::{LIGER}, liger-kernel 0.8.0: ") for line in found)
    assert all(re.match(r"::(error|warning|notice) ", line) for line in found) and any(line.startswith("::warning ") for line in found)
    page = scan("uv.lock", "--format", "markdown", cwd=folder).stdout
    row = next(line for line in page.splitlines() if line.startswith("| liger\\_flce\\_none\\_bwd "))
    assert "| liger-kernel 0.8.0 | hit: wrong\\_gradients (silent\\_wrong) | 0.8.5 cures liger\\_flce\\_none\\_bwd, " in row


def test_a_table_in_a_pipe_is_one_row_a_line(tmp_path: Path) -> None:
    deep = tmp_path / ("a-long-name-of-a-folder-" * 4)
    install(deep, "liger-kernel", "0.8.0")
    install(tmp_path / "b", "transformer-engine", "2.20.2")
    words = (deep, tmp_path / "b", "--pack", f"{LIGER},fp8_storage_dispatch")
    rows = scan(*words).stdout.split("\n\n")[0].splitlines()
    assert len(rows) == 3 and str(deep) in "".join(rows[1:])
    plain = scan(*words, "--plain").stdout.splitlines()
    assert [len(row.split("\t")) for row in plain] == [5] * 3 and plain[0] == "pack\trelease\tstate\tmitigation\tinput"


def test_a_table_of_verdicts_serves_without_records(folder: Path) -> None:
    """As an installed package has it: packs, pins and verdicts.json."""
    committed = os.environ | {"PATCHBENCH_LEDGER": "/nowhere/ledger.db"}  # as `document` reads them
    assert subprocess.run([PROGRAM, "export", "--format", "verdicts", "-o", folder / "verdicts.json"], env=committed).returncode == 0
    with_records = document("uv.lock", cwd=folder)
    assert document("uv.lock", "--db", "verdicts.json", cwd=folder) == with_records
    root = folder / "root"
    (root / "packs").mkdir(parents=True)
    shutil.copy(ROOT / "packs/manifest.schema.json", root / "packs")
    for manifest in ROOT.glob("packs/*/manifest.json"):
        (root / "packs" / manifest.parent.name).mkdir()
        shutil.copy(manifest, root / "packs" / manifest.parent.name)
    shutil.copy(folder / "verdicts.json", root)
    assert document("uv.lock", cwd=folder, PATCHBENCH_ROOT=str(root)) == with_records
    table = json.loads((folder / "verdicts.json").read_text())
    for state in ("unresolved", "not_measured"):
        changed = json.loads(json.dumps(table))
        for release in changed["packs"][LIGER]["upstreams"][0]["releases"]:
            if release["version"] == "0.8.0":
                release["state"] = state
                del release["classes"]
        (folder / "hole.json").write_text(json.dumps(changed))
        rows = document("uv.lock", "--db", "hole.json", cwd=folder)[1]["answers"]
        assert [one["state"] for one in rows if one["slug"] == LIGER] == ["unknown"], "a hole between measured releases"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", table["date"]) and table["date"] == with_records[1]["verdicts_of"]
    del table["packs"][LIGER]
    (folder / "verdicts.json").write_text(json.dumps(table))
    status, found = document("uv.lock", "--db", "verdicts.json", "--pack", LIGER, cwd=folder)
    assert status == 3 and {one["state"] for one in found["answers"]} == {"unknown"}
    table["packs"]["a_new_pack"] = table["packs"]["dsa_graph_capture"]
    (folder / "verdicts.json").write_text(json.dumps(table))
    assert any("a_new_pack" in line for line in document("uv.lock", "--db", "verdicts.json", cwd=folder)[1]["unread"])

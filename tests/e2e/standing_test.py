"""Where the packs stand, from the committed evidence: status, status windows, env pins update, patch check."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from answers import PROGRAM, ROOT, on_a_terminal, records_of  # noqa: E402

SLUG = "liger_flce_none_bwd"


@pytest.fixture
def run(tmp_path: Path):
    """Runs the program with a ledger of this test alone."""

    def start(*words: str, root: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
        given = os.environ | {"PATCHBENCH_ROOT": str(root), "PATCHBENCH_LEDGER": str(tmp_path / "ledger.db")} | env
        return subprocess.run([PROGRAM, *words], env=given, capture_output=True, text=True, timeout=600)

    return start


def columns(line: str) -> int:
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["status", "--by", "repository"],
        ["status", SLUG],
        ["status", "windows"],
        ["status", "--since", "2026-11-21"],
        ["status", "due"],
        ["status", "windows", SLUG],
    ],
)
def test_fits_eighty_columns_of_a_terminal(tmp_path: Path, words: list[str]) -> None:
    given = os.environ | {"PATCHBENCH_ROOT": str(ROOT), "PATCHBENCH_LEDGER": str(tmp_path / "ledger.db"), "NO_COLOR": "1"}
    shown = on_a_terminal(*words, env=given)
    wide = [line for line in shown.splitlines() if columns(line) > 80 and "http" not in line]
    assert shown and not wide, wide


def test_the_window_is_computed_from_the_records(run) -> None:
    windows = json.loads(run("--json", "status", "windows", SLUG).stdout)["windows"]
    assert {w["device"].split(" (")[0] for w in windows} == {"cpu", "NVIDIA H200"}
    for w in windows:
        seen = [(i["class"], i["first_bad"], i["last_bad"], i["has_gap"]) for i in w["intervals"]]
        assert seen == [
            ("reduction_ignored", "0.3.0", "0.5.2", False),
            ("wrong_gradients", "0.5.3", "0.5.8", False),
            ("reduction_ignored", "0.5.9", "0.6.2", False),
            ("wrong_gradients", "0.6.3", "0.8.1", False),
        ]
        assert w["intervals"][-1]["first_good_after"] == "0.8.2" and not w["is_open"]


def test_what_is_never_released_has_a_window_over_its_commits(run) -> None:
    windows = json.loads(run("--json", "status", "windows", "sparse_mla_dims").stdout)["windows"]
    (slime,) = [w for w in windows if w["upstream"] == "slime"]
    assert [r["version"][:14] for r in slime["releases"]] == ["git:624b824a89"] and slime["intervals"][0]["class"] == "shape_asserted"
    assert "slime, 1 locked commits" in run("status", "windows", "sparse_mla_dims").stdout
    assert "git:624b824a89</b>" in run("status", "page").stdout


def test_the_window_tells_where_memory_went_up_and_came_down(run) -> None:
    """Liger's loss over 0.6.2 to 0.8.2 held about three times what it does before and after, on the reduction that is right, too."""
    windows = {w["device"].split(" (")[0]: w for w in json.loads(run("--json", "status", "windows", SLUG).stdout)["windows"]}
    assert "costs" not in windows["cpu"]  # an interpreter's peak says nothing
    costs = windows["NVIDIA H200"]["costs"]
    assert [r["version"] for r in costs["releases"]] == [r["version"] for r in windows["NVIDIA H200"]["releases"]]
    assert all(r["wall_s"] > 0 and r["peak_bytes"] > 0 for r in costs["releases"])
    changes = {c["case"]: c["ranges"] for c in costs["changes"]}
    mean = changes["mean_512x256x4096_bf16"]
    assert [(r["first"], r["last"]) for r in mean] == [("0.3.0", "0.6.1"), ("0.6.2", "0.8.2"), ("0.8.3", "0.8.5")]
    assert 2.5 < mean[1]["peak_bytes"] / mean[0]["peak_bytes"] < 3.5 and mean[2]["peak_bytes"] < mean[0]["peak_bytes"]
    assert "none_signed" not in changes  # its few kilobytes change, and nobody cares


def run_of_another_gpu(version: str, device: str) -> str:
    """The records of one committed run as another machine would have made them: its verdict cites their new digests."""
    mine = f'"version":"{version}"'
    lines = records_of(ROOT / f"reports/evidence/{SLUG}/cpu-window.jsonl")
    out, digests = [], {}
    for line in sorted((line for line in lines if mine in line and ":window:v1" not in line), key=lambda line: ":verdict:v1" in line):
        theirs = re.sub(r'("machine":\{"cpu":"[^"]*","device":)"cpu"', rf'\1"{device}"', line)
        assert theirs != line
        for old, new in digests.items():
            theirs = theirs.replace(old, new)
        digests[hashlib.sha256(line.encode()).hexdigest()] = hashlib.sha256(theirs.encode()).hexdigest()
        out.append(theirs)
    assert ":verdict:v1" in out[-1]
    return "\n".join(out) + "\n"


def test_an_unsigned_import_stands_apart_and_never_counts(run, tmp_path: Path) -> None:
    (before,) = json.loads(run("--json", "status", SLUG).stdout)["packs"]
    path = tmp_path / "theirs.jsonl"
    path.write_text(run_of_another_gpu("0.8.0", "NVIDIA A100 (sm_80)"))
    done = run("ledger", "import", str(path))
    assert done.returncode == 0 and "never counted" in done.stdout, done.stderr
    (after,) = json.loads(run("--json", "status", SLUG).stdout)["packs"]
    theirs = {"sentinel": "BUG_REPRODUCED(wrong_gradients)", "device": "NVIDIA A100 (sm_80)", "runs": 1}
    assert before["unsigned_imports"] == [] and after["unsigned_imports"] == [theirs]
    assert after | {"unsigned_imports": []} == before
    assert "red (wrong_gradients) on A100 ×1: unsigned imports" in " ".join(run("status").stdout.split())


def test_since_tells_what_changed_and_exits_with_it(run) -> None:
    late = run("status", "--since", "2999-01-01")
    assert (late.returncode, late.stdout) == (0, "nothing changed since 2999-01-01\n")
    early = run("--json", "status", "--since", "2026-01-01")
    changes = json.loads(early.stdout)["changes"]
    assert early.returncode == 1 and all(c["before"] == "" for c in changes)
    assert any(c["now"] == "BUG_REPRODUCED(wrong_gradients)" and c["version"] == "0.8.0" for c in changes)
    assert run("status", "--since", "yesterday").returncode == 2


def changed_root(tmp_path: Path, **fields: str) -> Path:
    root = tmp_path / "root"
    for folder in ("packs", "env", "reports", "patches"):
        shutil.copytree(ROOT / folder, root / folder)
    path = root / f"packs/{SLUG}/manifest.json"
    document = json.loads(path.read_text())
    document["lifecycle"] |= fields
    path.write_text(json.dumps(document))
    return root


def due(run, root: Path, day: str) -> dict[str, list[str]]:
    """Reasons by what is due; notes, which are not due, among them."""
    (pack,) = json.loads(run("--json", "status", "due", SLUG, "--day", day, root=root).stdout)["packs"]
    assert all(one["what"] == "note" for one in pack["notes"])
    out: dict[str, list[str]] = {}
    for one in pack["due"] + pack["notes"]:
        out.setdefault(one["what"], []).append(one["why"])
    return out


def test_lifecycle_computes_what_is_due(run, tmp_path: Path) -> None:
    assert "review" not in due(run, ROOT, "2027-05-21") and "review" in due(run, ROOT, "2027-05-22")
    now = due(run, ROOT, "2026-11-22")
    assert "0.8.5 is green on every trigger of 0.8.0" in now["retirement"][0]
    root = changed_root(tmp_path, keep="drop", admission="owed: a number")
    assert {"deletion", "admission"} <= set(due(run, root, "2026-11-22"))
    (pack,) = json.loads(run("--json", "status", "due", SLUG, root=root).stdout)["packs"]
    assert (pack["keep"], pack["admission"], pack["catalog"]["role"]) == ("drop", "owed: a number", "donor")
    for path in (root / f"reports/evidence/{SLUG}").glob("*.jsonl"):
        if path.name != "cpu.jsonl":
            path.unlink()
    assert "retirement" not in due(run, root, "2026-11-22")
    assert run("status", "due", SLUG).returncode == 1


def test_speed_that_costs_memory_is_a_note_and_no_demotion(run, tmp_path: Path) -> None:
    """Plain torch keeps all logits of the none reduction: it is faster than the op, and takes several times its memory."""
    now = due(run, ROOT, "2026-11-22")
    ours, plain = json.loads((ROOT / f"reports/evidence/{SLUG}/bench-h200.json").read_text())["runs"][0]["rows"][:2]
    assert plain["median_ms"] < ours["median_ms"] and plain["peak_bytes"] > 5 * ours["peak_bytes"]
    times = f"{plain['median_ms']:.2f} ms against {ours['median_ms']:.2f} ms"
    peaks = f"{plain['peak_bytes'] / 2**30:.2f} GiB against {ours['peak_bytes'] / 2**30:.2f} GiB"
    assert "demotion" not in now and any(times in why and peaks in why for why in now["note"]), now
    root = changed_root(tmp_path)
    path = root / f"reports/evidence/{SLUG}/bench-h200.json"
    document = json.loads(path.read_text())
    document["runs"][0]["rows"][1]["peak_bytes"] = ours["peak_bytes"]
    path.write_text(json.dumps(document))
    (demotion,) = due(run, root, "2026-11-22")["demotion"]
    assert times in demotion
    del document["runs"][0]["rows"][1]["peak_bytes"]
    path.write_text(json.dumps(document))
    (demotion,) = due(run, root, "2026-11-22")["demotion"]
    assert times in demotion and "no peaks" in demotion


def test_only_the_upstream_that_a_mitigation_acts_on_retires_it(run) -> None:
    """Pack 14: the newest tilelang is green, the newest megatron-core, on which the mitigation acts, is red."""
    (pack,) = json.loads(run("--json", "status", "due", "sparse_mla_pdp_precision", "--day", "2026-11-23").stdout)["packs"]
    assert "retirement" not in {one["what"] for one in pack["due"]}
    (note,) = [one["why"] for one in pack["notes"] if "tilelang" in one["why"]]
    assert note == ("tilelang 0.1.15 is green on every trigger of 0.1.9 (cpu; green since 0.1.11); the mitigation acts on "
                    "megatron-core and stays, red is megatron-core 0.19.2 (cpu)")  # fmt: skip
    (filing,) = json.loads(run("--json", "status", "filing", "sparse_mla_pdp_precision", "--day", "2026-11-23").stdout)["packs"]
    assert not [block for block in filing["blocks"] if "no longer shows it" in block]
    assert "tilelang 0.1.15 no longer shows it: leave it out of the report, which goes to megatron-core" in filing["notes"]
    liger = json.loads(run("--json", "status", "filing", SLUG, "--day", "2026-11-23").stdout)["packs"][0]
    assert liger["kind"] == "none" or "liger-kernel 0.8.5 no longer shows it" in liger["blocks"]


def rows_of_summary(text: str, slug: str) -> dict[tuple[str, str], dict[str, str]]:
    """(release, device) -> the verdicts by column, of the table of a pack's page."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    rows = [dict(zip(cells[0], row, strict=True)) for row in cells[1:] if row[0] == f"`{slug}`"]
    return {(row["tested release"], row["device"]): row for row in rows}


def test_a_new_case_with_a_larger_error_is_no_growth(run) -> None:
    """The newest run of 05's op has cases that the two before had not; one of them takes more of its limit than theirs did."""
    (pack,) = json.loads(run("--json", "status", "due", "mamba3_mimo_gqa_bwd").stdout)["packs"]
    assert "demotion" not in {one["what"] for one in pack["due"]}


def test_a_tested_release_shows_what_ran_with_other_companions(run) -> None:
    """On the H200 it ran on the tested megatron-core with another tilelang than the tested one: nothing of that may be hidden."""
    slug = "sparse_mla_pdp_precision"
    cells = [c for c in json.loads(run("--json", "status", slug).stdout)["cells"] if "H200" in c["device"]]
    newest = {c["sentinel"] for c in cells if c["version"].startswith("0.19.2")}
    assert {"FIX_VALIDATED", "MITIGATION_VERIFIED", "NO_REGRESSION"} <= newest
    row = rows_of_summary(run("status", slug, "--summary").stdout, slug)["megatron-core 0.19.2 with tilelang 0.1.15", "NVIDIA H200 (sm_90)"]
    assert "FIX_VALIDATED" in row["fix"] and "NO_REGRESSION" in row["fix"] and "MITIGATION_VERIFIED" in row["mitigation"], row
    holds = " ".join(run("status", slug).stdout.split())
    assert "FIX_VALIDATED (no random cases, older run) H200 with tilelang 0.1.15" in holds, holds
    assert not row["reproduced"] and not any("BUG_ABSENT" in said for said in row.values()), "the release itself did not run with it"


def test_no_regression_names_the_numbers_that_were_compared(run) -> None:
    """It says nothing of time: no text may leave the name alone."""
    slug = "sparse_mla_pdp_precision"
    bounds = json.loads((ROOT / f"packs/{slug}/manifest.json").read_text())["bounds"]["lowering"]["ratios_max"]
    said = f"NO_REGRESSION of {', '.join(sorted(bounds))} (case lowering, each at most 1.03 times upstream's)"
    for words in (["status", slug, "--summary"], ["status", "--markdown"], ["status"], ["status", "claims", slug]):
        text = " ".join(run(*words).stdout.replace("`", "").split())
        assert text.count("NO_REGRESSION") == text.count(said) > 0, words


def test_a_plan_counts_what_the_records_know(run, tmp_path: Path) -> None:
    def plan(root: Path) -> tuple[int, int, int]:
        (found,) = json.loads(run("--json", "window", SLUG, "--device", "cpu", "--plan", root=root).stdout)
        return found["known"], len(found["to_measure"]), found["on_other_cases"]

    known, to_measure, on_others = plan(ROOT)
    assert known + on_others == 29 and to_measure == on_others, "every release is known, on these cases or on those before"
    root = changed_root(tmp_path, keep="drop")
    assert plan(root) == (known, to_measure, on_others), "what no case depends on changes nothing"
    path = root / f"packs/{SLUG}/manifest.json"
    document = json.loads(path.read_text())
    document["cases"].append(document["cases"][0] | {"name": "one_more"})
    path.write_text(json.dumps(document))
    assert plan(root) == (0, 29, 29)
    shutil.rmtree(root / "reports/evidence")
    assert plan(root) == (0, 29, 0)


def test_every_due_record_is_in_the_evidence(run) -> None:
    digests = {d for p in json.loads(run("--json", "status", "due").stdout)["packs"] for one in p["due"] for d in one["records"]}
    known = {c["verdict"] for c in json.loads(run("--json", "status").stdout)["cells"]}
    assert digests and digests <= known


def index_file(tmp_path: Path, files: list[dict]) -> str:
    path = tmp_path / "index.json"
    path.write_text(json.dumps({"liger-kernel": {"files": files}}))
    return str(path)


def wheel(version: str, day: str, **more: object) -> dict:
    name = f"liger_kernel-{version}-py3-none-any.whl"
    return {"filename": name, "hashes": {"sha256": f"{len(version):064x}"}, "upload-time": f"{day}T01:02:03.4Z", "yanked": False} | more


def test_pins_update_finds_holes_and_what_is_newer(run, tmp_path: Path) -> None:
    files = [
        wheel("0.8.5", "2026-10-21"),
        wheel("0.8.10", "2026-11-20"),
        wheel("0.9.0", "2026-11-21"),
        wheel("0.9.1rc1", "2026-11-21"),
        wheel("0.7.1", "2026-11-19"),
        wheel("0.2.0", "2024-01-01"),
        wheel("0.7.0.post1", "2026-02-12"),
    ]
    root = changed_root(tmp_path)
    words = ["--json", "env", "pins", "update", "--offline", index_file(tmp_path, files)]
    found = json.loads(run(*words, root=root).stdout)
    proposed = [(p["version"], p["date"], p["is_hole"]) for p in found["releases"]]
    assert proposed == [
        ("0.7.0.post1", "2026-02-12", True),
        ("0.7.1", "2026-11-19", False),
        ("0.8.10", "2026-11-20", False),
        ("0.9.0", "2026-11-21", False),
    ]
    assert all(SLUG in p["unmeasured"] for p in found["releases"])
    assert (found["unlockable"], found["yanked"], found["complete"], found["written"]) == ([], [], [], False)
    before = (root / "env/pins.json").read_text()
    assert before == (ROOT / "env/pins.json").read_text()
    assert json.loads(run(*words, "--write", root=root).stdout)["written"]
    pins = json.loads((root / "env/pins.json").read_text())["upstreams"]
    versions = [r["version"] for r in pins["liger-kernel"]["releases"]]
    assert versions[-4:] == ["0.8.5", "0.7.1", "0.8.10", "0.9.0"] and versions[22:25] == ["0.7.0", "0.7.0.post1", "0.8.0"]
    added = [
        line
        for line in (root / "env/pins.json").read_text().splitlines()
        if line.rstrip(",") not in before.replace(",\n", "\n").splitlines()
    ]
    assert len(added) == 4, added
    window = json.loads(run("--json", "status", "windows", SLUG, root=root).stdout)["windows"][0]
    assert window["releases"][-1] == {"version": "0.9.0", "state": "not_measured", "verdict": ""}
    again = run(*words[1:], "liger-kernel", root=root).stdout
    assert again == "liger-kernel: the locks hold every final release of the index from 0.3.0 on\n"


def test_pins_update_names_what_it_cannot_lock(run, tmp_path: Path) -> None:
    files = [
        wheel("0.8.5", "2026-10-21"),
        wheel("0.8.4", "2026-09-30", yanked="wrong version"),
        wheel("0.9.2", "2026-11-21", yanked="broken"),
        wheel("0.9.3", "2026-11-21", filename="liger_kernel-0.9.3.tar.gz"),
    ]
    root = changed_root(tmp_path)
    words = ["env", "pins", "update", "liger-kernel", "--offline", index_file(tmp_path, files)]
    lines = run(*words, root=root).stdout.splitlines()
    assert [line.split(". ")[0] for line in lines] == [
        "liger-kernel 0.9.2 is not locked (yanked: broken)",
        "liger-kernel 0.9.3 is not locked (no usable file: it has an sdist)",
        "liger-kernel 0.8.4 is locked, and the index has yanked it: wrong version",
    ]
    path = root / "env/pins.json"
    pins = json.loads(path.read_text())
    left_out = [{"version": "0.9.2", "reason": "broken"}, {"version": "0.9.3", "reason": "no wheel"}]
    pins["upstreams"]["liger-kernel"]["left_out"] = left_out
    path.write_text(json.dumps(pins))
    lines = run(*words, root=root).stdout.splitlines()
    assert lines[1:] == [
        "liger-kernel: the locks hold every final release of the index from 0.3.0 on, but those left out: "
        "0.9.2 (broken), 0.9.3 (no wheel)"
    ]
    found = json.loads(run("--json", *words, root=root).stdout)
    assert found["yanked"] == [{"upstream": "liger-kernel", "version": "0.8.4", "reason": "wrong version"}]
    assert found["complete"][0]["left_out"][0] == {"version": "0.9.2", "reason": "broken"}


def test_pins_update_says_what_it_did_not_compare(run, tmp_path: Path) -> None:
    offline = ["--offline", index_file(tmp_path, [])]
    assert (
        run("env", "pins", "update", "triton", *offline).stdout
        == "triton: not compared, for it has no locked release or no page of the index\n"
    )
    assert "triton" in json.loads(run("--json", "env", "pins", "update", *offline).stdout)["not_compared"]
    assert json.loads(run("--json", "env", "pins", "update", "slime").stdout)["not_compared"] == ["slime"]


def test_pins_update_without_a_network_is_one_line(run, tmp_path: Path) -> None:
    done = run("env", "pins", "update", "liger-kernel", PIP_INDEX_URL="http://127.0.0.1:9/simple", no_proxy="127.0.0.1", http_proxy="")
    assert done.returncode == 4 and done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1 and "--offline" in done.stderr
    assert run("env", "pins", "update", "--offline", str(tmp_path / "none.json")).returncode == 2
    malformed = tmp_path / "bad.json"
    malformed.write_text('{"liger-kernel": {"files": [{"filename": 3}]}}')
    assert run("env", "pins", "update", "--offline", str(malformed)).returncode == 2


def test_patch_check_finds_where_an_edit_goes_stale(run) -> None:
    done = run("--json", "patch", "check", SLUG)
    assert done.returncode == 0, done.stderr
    (edit,) = json.loads(done.stdout)["edits"]
    states = {s["version"]: s for s in edit["releases"]}
    assert edit["base"] == "0.8.0" and states["0.8.0"]["state"] == "applies"
    assert {s["state"] for s in states.values()} <= {"applies", "rebased", "landed", "conflict", "file_gone"}
    later = edit["changes_later_at"]
    assert later and states[later]["state"] != "applies"
    stuck = [v for v in list(states)[list(states).index("0.8.0") :] if states[v]["state"] in ("conflict", "file_gone")]
    assert edit["stuck_later_at"] == stuck[0] and states[stuck[0]]["conflicts"]
    for s in states.values():
        for c in s["conflicts"]:
            assert c["path"] and {"ours", "theirs"} <= set(c)
        assert bool(s["conflicts"]) == (s["state"] in ("conflict", "file_gone"))


def test_patch_check_wants_a_pack_or_all(run) -> None:
    assert run("patch", "check").returncode == 2
    assert run("patch", "check", "liger_flce_none").returncode == 2
    assert run("window").returncode == 2


@pytest.mark.parametrize("words", [["patch", "check", SLUG], ["patch", "rebase", SLUG, "0.8.1"], ["sweep", "--packs", SLUG, "--plan"]])
def test_edits_and_sweeps_end_with_a_sentence_and_the_next_command(run, words: list[str]) -> None:
    sentence, command = run(*words).stdout.splitlines()[-2:]
    assert sentence.endswith(".") and command.startswith("next: patchbench "), (sentence, command)
    json.loads(run("--json", *words).stdout)

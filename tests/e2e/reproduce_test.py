"""The program as its users start it: real releases from the cache, in the strongest sandbox this machine has."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from answers import takes_minutes

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ["PATCHBENCH_BUILD"]) / "bin" / "patchbench"
SLUG = "liger_flce_none_bwd"
FEW = ["--device", "cpu"] + [w for c in ("none_random", "none_signed", "none_bias", "none_ones", "mean") for w in ("--case", c)]
Result = subprocess.CompletedProcess[str]


@pytest.fixture
def run(tmp_path: Path):
    """Runs the program with a ledger of this test alone."""

    def start(*words: str, cwd: Path | None = None, **env: str) -> Result:
        given = {**os.environ, "PATCHBENCH_ROOT": str(ROOT), "PATCHBENCH_LEDGER": str(tmp_path / "ledger.db"), **env}
        return subprocess.run([str(PROGRAM), *words], capture_output=True, text=True, env=given, cwd=cwd, timeout=600)

    return start


def verdict_of(result: Result) -> str:
    """The line of the verdict; a sentence and the next command follow."""
    *_, verdict, sentence, following = result.stdout.strip().splitlines()
    assert sentence.endswith(".") and following.startswith("next: "), result.stdout
    return verdict


def sentinel(result: Result) -> str:
    """The first word of the verdict: what the run came to."""
    return verdict_of(result).split(":")[0].split(" ")[0]


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11) or not (shutil.which("podman") and shutil.which("bwrap")),
    reason="wants podman, bubblewrap and the interpreter of the base image",
)
def test_a_first_run_waits_for_no_image_where_bubblewrap_serves(run, tmp_path: Path) -> None:
    theirs = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "patchbench"
    (tmp_path / "cache/patchbench").mkdir(parents=True)
    for name in ("env", "files", "static"):
        if (theirs / name).exists():
            (tmp_path / "cache/patchbench" / name).symlink_to(theirs / name)
    done = run("--json", "reproduce", SLUG, *FEW, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    (subject,) = json.loads(done.stdout)["subjects"]
    assert subject["context"]["sandbox"]["kind"] == "bwrap" and "has no base image here yet" in done.stderr
    assert not list((tmp_path / "cache/patchbench").glob("images/*.tar"))


@pytest.mark.parametrize(
    ("version", "wanted", "bisect_status"),
    [
        ("0.8.0", "BUG_REPRODUCED(wrong_gradients)", 1),
        ("0.6.2", "BUG_REPRODUCED(reduction_ignored)", 1),
        ("0.8.5", "BUG_ABSENT", 0),
    ],
)
def test_three_states_of_a_release_are_told_apart(run, version: str, wanted: str, bisect_status: int) -> None:
    words = ["reproduce", SLUG, version, *FEW]
    shown = run(*words)
    assert (sentinel(shown), shown.returncode) == (wanted, 0), shown.stdout + shown.stderr
    is_hit = bisect_status == 1
    assert f"liger-kernel {version} {'has the bug' if is_hit else 'is right'}" in shown.stdout
    assert shown.stdout.splitlines()[-1].startswith(f"next: patchbench {'validate' if is_hit else 'status windows'} {SLUG}")
    assert run(*words, "--bisect").returncode == bisect_status
    assert run("ledger", "verify").returncode == 0


def test_alias_of_the_second_class_is_printed(run) -> None:
    assert "REDUCTION_IGNORED" in run("reproduce", SLUG, "0.6.2", *FEW).stdout


def test_json_is_one_document_that_cites_its_record(run) -> None:
    document = json.loads(run("--json", "reproduce", SLUG, *FEW).stdout)
    assert document["sentinel"] == "BUG_REPRODUCED(wrong_gradients)"
    assert run("ledger", "show", document["verdict_record"]).returncode == 0


def test_our_edit_is_validated_and_a_half_fix_rejected(run) -> None:
    ours = run("validate", SLUG, *FEW)
    assert (sentinel(ours), ours.returncode) == ("FIX_VALIDATED(named_cases)", 0), ours.stdout + ours.stderr
    half = run("validate", SLUG, "--edit", str(ROOT / "patches" / SLUG / "mutant-sign-lost.edit"), *FEW)
    assert (sentinel(half), half.returncode) == ("FIX_REJECTED", 1), half.stdout + half.stderr
    assert "none_signed" in verdict_of(half)


WRONG_FIXES = {  # right on small cases of ordinary gradients, wrong where an ordinary run goes
    "none_gradient_65536": "grad_output.clamp(-1e3, 1e3)",
    "none_gradient_1e_7": "grad_output.masked_fill(grad_output.abs() < 1e-5, 0)",
    "none_hidden_4096": "grad_output if _input.shape[1] <= 1024 else grad_output[:1].expand_as(grad_output)",
    "none_1031_tokens": "grad_output if _input.shape[0] <= 1000 else grad_output[:1].expand_as(grad_output)",
}


IN_THE_GATE = "none_gradient_65536"


@pytest.mark.parametrize("case", [case if case == IN_THE_GATE else pytest.param(case, marks=takes_minutes) for case in WRONG_FIXES])
def test_a_fix_that_is_wrong_in_one_region_is_rejected(run, tmp_path: Path, case: str) -> None:
    right = run("patch", "show", SLUG).stdout
    edit = tmp_path / "candidate.diff"
    edit.write_text(right.replace("row_scale=grad_output,", f"row_scale={WRONG_FIXES[case]},"))
    assert right != edit.read_text()
    done = run("validate", SLUG, "--edit", str(edit), "--device", "cpu", *(w for c in ("none_random", "mean", case) for w in ("--case", c)))
    assert (sentinel(done), done.returncode) == ("FIX_REJECTED", 1), done.stdout + done.stderr
    assert case in verdict_of(done)


def test_subjects_that_run_at_a_time_are_judged_as_one_after_the_other(run) -> None:
    one, four = (json.loads(run("--json", "validate", SLUG, "--jobs", jobs, *FEW).stdout) for jobs in ("1", "4"))
    seen = [[(o["subject"], o["case"], o["seen"]) for s in document["subjects"] for o in s["observations"]] for document in (one, four)]
    assert seen[0] == seen[1] and len({subject for subject, *_ in seen[0] if ":region:" not in subject}) == 15
    assert one["sentinel"] == four["sentinel"] == "FIX_VALIDATED(named_cases)"
    regions = {o["subject"]: o["seen"] for s in one["subjects"] for o in s["observations"] if ":region:" in o["subject"]}
    assert regions["mutant:region:ties"] == "present" and regions["mutant:region:beyond_hidden"] == "unsupported"


def test_a_subject_starts_with_a_copy_of_the_compile_cache(run, tmp_path: Path) -> None:
    kernel = tmp_path / "compiled" / "cache" / "digest" / "kernel.so"
    kernel.parent.mkdir(parents=True)
    kernel.write_text("code")
    result = run("--json", "reproduce", SLUG, *FEW[:4], "--compile-cache", str(tmp_path / "compiled"))
    context = json.loads(result.stdout)["subjects"][0]["context"]
    assert len(context["sandbox"]["compile_cache"]) == 64
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "patchbench/runs" / context["run_id"]
    assert (caches / "upstream/work/home/.tilelang/cache/digest/kernel.so").read_text() == "code"
    # A mount at /work would hide an interpreter of the user below /work, and so on: no machine has this folder.
    spec = json.loads((caches / "upstream/spec.json").read_text())
    assert {Path(mount["inside"]).parts[1] for mount in spec["mounts"]} == {".pb"}
    assert run("reproduce", SLUG, "--compile-cache", "/nowhere").returncode == 2


def test_model_and_op_are_judged_in_process(run) -> None:
    assert sentinel(run("reproduce", SLUG, "--subject", "model", *FEW)) == "BUG_REPRODUCED(wrong_gradients)"
    assert sentinel(run("reproduce", SLUG, "--subject", "op", *FEW)) == "OP_VALIDATED(named_cases)"


def test_an_op_is_judged_without_its_upstream(run, tmp_path: Path) -> None:
    """An empty cache but for the environment, an index that is not there: neither is asked for, nor by the self-test."""
    cache = tmp_path / "cache/patchbench"
    cache.mkdir(parents=True)
    for name in ("env", "images"):
        (cache / name).symlink_to(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "patchbench" / name)
    nowhere = {"XDG_CACHE_HOME": str(cache.parent), "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    judged = run("reproduce", SLUG, "--subject", "op", *FEW, **nowhere)
    assert sentinel(judged) == "OP_VALIDATED(named_cases)", judged.stderr
    assert not (cache / "git").exists()
    assert run("reproduce", SLUG, *FEW, **nowhere).returncode == 4


def test_git_bisect_finds_the_commit_that_brought_the_bug(run, tmp_path: Path) -> None:
    clone = tmp_path / "clone"

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=clone, check=True, capture_output=True, text=True).stdout.strip()

    def commit(version: str | None, note: str) -> str:
        if version:
            pins = json.loads((ROOT / "env/pins.json").read_text())["upstreams"]["liger-kernel"]["releases"]
            release = next(r for r in pins if r["version"] == version)
            cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench/files"
            shutil.rmtree(clone / "src", ignore_errors=True)
            shutil.unpack_archive(cache / release["sha256"] / release["file"], clone / "src", "zip")
        (clone / "NOTES").write_text(note)
        git("add", "-A")
        git("-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", note)
        return git("rev-parse", "HEAD")

    clone.mkdir()
    git("init", "-q")
    good = commit("0.8.2", "right")
    commit(None, "words")
    culprit = commit("0.8.1", "wrong")
    bad = commit(None, "more words")
    git("bisect", "start", bad, good)
    env = {**os.environ, "PATCHBENCH_ROOT": str(ROOT), "PATCHBENCH_LEDGER": str(tmp_path / "bisect.db")}
    words = [str(PROGRAM), "reproduce", SLUG, "path:.", "--bisect", *FEW]
    found = subprocess.run(["git", "bisect", "run", *words], cwd=clone, env=env, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{culprit} is the first bad commit" in found.stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["reproduce", "liger_flce_non_bwd"], 2, "did you mean liger_flce_none_bwd"),
        (["reproduce", SLUG, "0.8.55"], 2, "0.8.5"),
        (["reproduce", SLUG, "--case", "none_randm"], 2, "none_random"),
        (["reproduce", SLUG, "--subject", "patchd"], 2, "patched"),
        (["reproduce", SLUG, "--device", "gpu"], 2, "cpu nor cuda:N"),
        (["reproduce", SLUG, "--device", "cuda:9"], 4, "try --device cpu"),
        (["reproduce", SLUG, "--sandbox", "padman"], 2, "podman"),
        (["reproduce", SLUG, "path:/nowhere"], 2, "/nowhere"),
        (["reproduce", SLUG, "--python", "/nowhere"], 2, "/nowhere"),
        (["reproduce", SLUG, "--python", sys.executable], 4, "liger-kernel is not installed there"),
        (["reproduce"], 2, "name one pack"),
        (["reprodce", SLUG], 2, "did you mean reproduce"),
        (["reproduce", SLUG, "--sandbx", "bwrap"], 2, "--sandbox"),
        (["validate", SLUG, "--edit", "/nowhere.edit"], 2, "/nowhere.edit"),
        (["ledger", "import", "/nowhere.jsonl"], 2, "/nowhere.jsonl"),
    ],
)
def test_wrong_words_are_one_clear_line(run, words: list[str], status: int, said: str) -> None:
    result = run(*words)
    assert result.returncode == status, result.stdout + result.stderr
    progress = ("self-test of the judge", "fetching ")
    lines = [line for line in result.stderr.splitlines() if not line.removeprefix("patchbench: ").startswith(progress)]
    assert len(lines) == 1 and said in lines[0], result.stderr
    if words[0] == "reproduce":
        assert run(*words, "--bisect").returncode == 200


def test_plan_starts_nothing(run, tmp_path: Path) -> None:
    planned = run("reproduce", SLUG, "--plan")
    assert planned.returncode == 0 and "environment" in planned.stdout
    assert not (tmp_path / "ledger.db").exists()


def test_status_shows_what_was_recorded(run) -> None:
    run("reproduce", SLUG, *FEW)
    rows = [r for r in json.loads(run("--json", "status").stdout)["cells"] if r["version"] == "0.8.0" and r["device"].startswith("cpu")]
    assert any(r["sentinel"] == "BUG_REPRODUCED(wrong_gradients)" for r in rows)


def test_the_committed_evidence_holds(run) -> None:
    """Every verdict follows from the observations of its run."""
    files = sorted((ROOT / "reports/evidence").glob("*/*.jsonl"))
    broken = [done.stdout + done.stderr for file in files if (done := run("ledger", "verify", str(file))).returncode != 0]
    assert files and not broken, broken


def test_the_page_of_all_verdicts_shows_the_committed_evidence(run) -> None:
    assert (ROOT / "reports/STATUS.md").read_text() == run("status", "--markdown").stdout


def test_a_pack_without_a_reproducer_says_so(run, tmp_path: Path) -> None:
    packs = tmp_path / "root" / "packs"
    shutil.copytree(ROOT / "packs", packs)
    shutil.copytree(ROOT / "env", tmp_path / "root" / "env")
    manifest = json.loads((packs / SLUG / "manifest.json").read_text())
    manifest["waivers"] = [{"cell": "repro", "reason": "not yet built"}]
    (packs / SLUG / "manifest.json").write_text(json.dumps(manifest))
    result = run("reproduce", SLUG, PATCHBENCH_ROOT=str(tmp_path / "root"))
    assert result.returncode == 4
    assert result.stderr.splitlines()[-1].endswith(f"{SLUG}: no reproducer yet (not yet built)"), result.stderr

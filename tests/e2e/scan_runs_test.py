"""`patchbench scan --runs DIR`: which past runs were hit."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from scan_test import LIGER, document, scan

TRAINER, ZERO2, TE = "trainer_grad_accumulation", "zero2_grad_accumulation", "te_fused_ce"


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def wandb(root: Path, name: str, packages: str | None, config: dict[str, Any] | None = None) -> Path:
    """A run's folder as wandb writes it: each setting is below `value`."""
    run = root / "wandb" / name
    if packages is not None:
        write(run / "files/requirements.txt", packages)
    lines = ["wandb_version: 1", "", "_wandb:", "  desc: null", "  value:", "    cli_version: 0.19.1", "    t:", "      1:", "      - 1"]
    for key, value in (config or {}).items():
        lines += [f"{key}:", "  desc: null", f"  value: {json.dumps(value)}"]
    write(run / "files/config.yaml", "\n".join(lines) + "\n")
    write(run / "files/wandb-metadata.json", '{"program": "train.py"}')
    write(run / f"{name}.wandb", "not a text")
    return run


def mlflow(root: Path, name: str, packages: dict[str, str], params: dict[str, str]) -> Path:
    run = root / "mlruns/0" / name
    write(root / "mlruns/0/meta.yaml", "artifact_location: file:///m\nexperiment_id: '0'\nname: Default\n")
    write(run / "meta.yaml", f"artifact_uri: file:///m/{name}\nend_time: null\nrun_id: {name}\nstart_time: 1767225600000\nstatus: 3\n")
    for key, value in params.items():
        write(run / "params" / key, value)
    for file, text in packages.items():
        write(run / "artifacts/model" / file, text)
    return run


def rows(*words: Any, **options: Any) -> tuple[int, dict[str, dict[str, Any]]]:
    status, found = document("--runs", *words, **options)
    return status, {one["run"]: one for one in found["runs"]}


def conditions(run: dict[str, Any], slug: str) -> set[str]:
    return {one["condition"] for one in run["classes"] if one["slug"] == slug}


def test_each_run_is_a_row(tmp_path: Path) -> None:
    wandb(tmp_path, "run-20260131_120000-aaaa1111", "liger_kernel==0.8.0\nnumpy==2.0.0\n")
    wandb(tmp_path, "offline-run-20260201_120000-bbbb2222", "liger-kernel==99.0\n")
    wandb(tmp_path, "run-20260202_120000-cccc3333", "numpy==2.0.0\n")
    wandb(tmp_path, "run-20260203_120000-dddd4444", None)
    wandb(tmp_path, "run-20260204_120000-eeee5555", "deepspeed==0.18.3\n")
    (tmp_path / "wandb/latest-run").symlink_to("run-20260131_120000-aaaa1111")
    status, found = rows(tmp_path)
    said = {name.rpartition("/")[2]: (one["day"], one["state"]) for name, one in found.items()}
    assert status == 1 and said == {
        "run-20260131_120000-aaaa1111": ("2026-01-31", "hit"),
        "offline-run-20260201_120000-bbbb2222": ("2026-02-01", "unknown"),
        "run-20260202_120000-cccc3333": ("2026-02-02", "not_listed"),
        "run-20260203_120000-dddd4444": ("2026-02-03", "unknown"),
        "run-20260204_120000-eeee5555": ("2026-02-04", "not_hit"),
    }
    done = scan("--runs", tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and lines[-2].startswith("1 of 5 runs were hit, 2 unknown, 1 not hit, 1 with no package that")
    cells = next(line.split() for line in lines if LIGER in line and "0.8.0" in line)
    assert cells == ["wandb/run-20260131_120000-aaaa1111", "2026-01-31", LIGER, "liger-kernel", "0.8.0", "wrong_gradients", "open"]
    assert any(line.startswith("unknown: ") and "dddd4444: has no files/requirements.txt" in line for line in lines)


STEPS = "gradient_accumulation_steps"
SETTINGS = [
    ("transformers==4.45.2", {STEPS: 8}, TRAINER, "met"),
    ("transformers==4.45.2", {STEPS: 1}, TRAINER, "not met"),
    ("transformers==4.45.2", {STEPS: "auto"}, TRAINER, "open"),
    ("transformers==4.45.2", {"learning_rate": 1e-4}, TRAINER, "open"),
    ("transformers==4.45.2", {STEPS: 8, "deepspeed": {"zero_optimization": {"stage": 2}}}, TRAINER, "open"),
    ("transformers==4.45.2", {STEPS: 1, "deepspeed": {STEPS: 8}}, TRAINER, "open"),
    ("deepspeed==0.18.1", {STEPS: 8, "zero_optimization": {"stage": 2}}, ZERO2, "met"),
    ("deepspeed==0.18.1", {STEPS: 1, "zero_optimization": {"stage": 2}}, ZERO2, "not met"),
    ("deepspeed==0.18.1", {STEPS: 8, "zero_optimization": {"stage": 3}}, ZERO2, "open"),
    ("deepspeed==0.18.1", {STEPS: 8}, ZERO2, "open"),
    ("transformer-engine==2.3.0", {"cross_entropy_fusion_impl": "te"}, TE, "met"),
    ("transformer-engine==2.3.0", {"cross_entropy_fusion_impl": "native"}, TE, "open"),
    ("liger-kernel==0.8.0", {STEPS: 1}, LIGER, "open"),
]


@pytest.mark.parametrize(("package", "config", "slug", "condition"), SETTINGS)
def test_settings_say_whether_the_condition_was_met(tmp_path: Path, package: str, config: dict, slug: str, condition: str) -> None:
    wandb(tmp_path, "run-20260131_120000-a", package + "\n", config)
    status, found = rows(tmp_path, "--pack", slug)
    (run,) = found.values()
    assert condition in conditions(run, slug), run
    if condition == "not met":
        left = conditions(run, slug) - {"not met"}
        assert (status, run["state"]) == ((1, "hit") if left else (0, "not_hit")), run
    else:
        assert (status, run["state"]) == (1, "hit")


def test_a_run_that_did_not_meet_the_condition_is_no_hit(tmp_path: Path) -> None:
    wandb(tmp_path, "run-20260131_120000-a", "deepspeed==0.18.1\n", {STEPS: 1, "zero_optimization": {"stage": 2}})
    wandb(tmp_path, "run-20260131_120000-b", "deepspeed==0.18.1\n", {STEPS: 4, "zero_optimization": {"stage": 2}})
    lines = scan("--runs", tmp_path, "--pack", ZERO2).stdout.splitlines()
    ends = {line.split()[0][-1]: line.split()[-2:] for line in lines if "last_micro_batch" in line}
    assert ends == {"a": ["not", "met"], "b": ["last_micro_batch", "met"]}
    assert lines[-2].startswith("1 of 2 runs were hit, 0 unknown, 1 not hit")


def test_mlflow_runs(tmp_path: Path) -> None:
    lists = {"requirements.txt": "transformers==4.45.2\nmlflow==2.20.0\n", "conda.yaml": "dependencies:\n- transformers=1.0\n"}
    mlflow(tmp_path, "a" * 32, lists, {STEPS: "8", "note": "x\ny: [", "bf16": "True"})
    mlflow(tmp_path, "b" * 32, {"conda.yaml": "dependencies:\n- python=3.11\n- pip:\n  - transformers==4.45.2\n"}, {STEPS: "1"})
    mlflow(tmp_path, "c" * 32, {}, {STEPS: "8"})
    _, found = rows(tmp_path, "--pack", TRAINER)
    by_id = {name[-1]: one for name, one in found.items()}
    assert {one["day"] for one in by_id.values()} == {"2026-01-01"} and len(by_id) == 3
    assert "met" in conditions(by_id["a"], TRAINER) and "not met" in conditions(by_id["b"], TRAINER)
    assert by_id["c"]["state"] == "unknown" and "artifacts" in by_id["c"]["unread"][0]


def test_checkpoints_of_megatron_are_not_unpickled(tmp_path: Path) -> None:
    for name in ("plain", "bridge"):
        write(tmp_path / name / "latest_checkpointed_iteration.txt", "100")
        write(tmp_path / name / "iter_0000100/common.pt", "cos\nsystem\n(S'touch PWNED'\ntR.")
    write(tmp_path / "bridge/iter_0000100/run_config.yaml", "model:\n  cross_entropy_fusion_impl: te\n")
    write(tmp_path / "bridge/requirements.txt", "transformer-engine==2.3.0\n")
    status, found = rows(tmp_path, "--pack", TE, cwd=tmp_path)
    assert status == 1 and "met" in conditions(found["bridge"], TE)
    assert found["plain"]["state"] == "unknown" and "pickle" in found["plain"]["unread"][0]
    assert not (tmp_path / "PWNED").exists()


BROKEN = {
    "zeros": b"liger-kernel==0.8.0\0",
    "no requirement": b"liger-kernel===\n<<<<<<< HEAD\n",
    "a range": b"liger-kernel>=0.3\n",
    "no version": b"mine\n",
    "a folder": b"-e /home/me/liger\n",
    "an include": b"-r ../../../../../etc/passwd\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_list_does_not_say_is_unknown(tmp_path: Path, name: str) -> None:
    run = wandb(tmp_path, "run-20260131_120000-a", "")
    (run / "files/requirements.txt").write_bytes(BROKEN[name])
    status, found = rows(tmp_path)
    (one,) = found.values()
    assert status in (1, 3) and one["state"] in ("unknown", "hit") and (one["state"] == "hit" or one["unread"] or one["unknown"])


def test_a_configuration_that_cannot_be_read_leaves_the_condition_open(tmp_path: Path) -> None:
    run = wandb(tmp_path, "run-20260131_120000-a", "transformers==4.45.2\n")
    write(run / "files/config.yaml", f"{STEPS}: [1\n")
    status, found = rows(tmp_path, "--pack", TRAINER)
    (one,) = found.values()
    assert status == 1 and conditions(one, TRAINER) == {"open"} and "config.yaml" in one["unread"][0]


def test_names_of_folders_are_escaped(tmp_path: Path) -> None:
    wandb(tmp_path / "a\x1b[2Jb", "run-20260131_120000-a", "liger-kernel==0.8.0\n")
    assert "\x1b" not in scan("--runs", tmp_path).stdout


def test_ignored_packs_are_no_hits(tmp_path: Path) -> None:
    wandb(tmp_path, "run-20260131_120000-a", "liger-kernel==0.8.0\n")
    write(tmp_path / ".patchbench.toml", f'[[ignore]]\npack = "{LIGER}"\nreason = "no masks"\nuntil = 2999-01-01\n')
    done = scan("--runs", tmp_path, "--pack", LIGER, cwd=tmp_path)
    assert done.returncode == 0 and "0 of 1 runs were hit" in done.stdout
    assert "ignored: " in done.stdout and "no masks" in done.stdout


def test_wrong_words(tmp_path: Path) -> None:
    cases = [(["--runs", tmp_path], 3, "no run was found"), (["--runs", tmp_path / "none"], 2, "is not a folder"),
             (["--runs", tmp_path, "."], 2, "no PATH"), (["--runs", tmp_path, "--code", tmp_path], 2, "--code"),
             (["--runs", tmp_path, "--only-fixable"], 2, "--only-fixable"),
             (["--runs", tmp_path, "--format", "sarif"], 2, "sarif")]  # fmt: skip
    for words, status, said in cases:
        done = scan(*words)
        assert (done.returncode, done.stderr.count("\n")) == (status, 1) and said in done.stderr, words


def test_a_thousand_runs_take_seconds(tmp_path: Path) -> None:
    versions = ["0.6.0", "0.8.0", "0.8.5", "0.8.2"]
    others = "".join(f"package-{at}==1.{at}\n" for at in range(300))
    for at in range(1000):
        wandb(tmp_path / f"team{at % 10}", f"run-20260131_{at:06}-x", f"liger-kernel=={versions[at % 4]}\n{others}", {STEPS: at % 3})
    started = time.monotonic()
    status, found = rows(tmp_path, "--pack", LIGER)
    assert time.monotonic() - started < 60
    hits = [one for one in found.values() if one["state"] == "hit"]
    assert (status, len(found), len(hits)) == (1, 1000, 500)

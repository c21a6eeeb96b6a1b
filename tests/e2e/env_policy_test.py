"""`job env print|check|explain|lint` on a shell, a process and an interpreter of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from answers import on_a_terminal

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build" / "cpu") / "bin" / "patchbench"
BARE = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PATCHBENCH_ROOT": str(ROOT)}


def run(*words: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *words], env=BARE | (env or {}), capture_output=True, text=True, timeout=300)


def states(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """rule -> state of `job env check --json`."""
    assert done.stdout, done.stderr
    return {f["rule"]: f["state"] for f in json.loads(done.stdout)["findings"]}


def environment_after(script: str, **env: str) -> dict[str, str]:
    """What a shell has after a script."""
    words = ["sh", "-c", f'{script}\n"{sys.executable}" -c "import json, os; print(json.dumps(dict(os.environ)))"']
    return json.loads(subprocess.run(words, env=BARE | env, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("rank", [{}, {"LOCAL_RANK": "0"}])
def test_what_print_gives_a_shell_is_what_check_wants(rank: dict[str, str]) -> None:
    script = run("job", "env", "print", "--cache", "/a b/it's", "--with", "no_autotune_memory").stdout
    env = environment_after(script, TORCHDYNAMO_SUPPRESS_ERRORS="1", **rank)
    assert env["TRITON_CACHE_DIR"] == "/a b/it's/triton" and ("TORCH_NCCL_ENABLE_MONITORING" in env) == bool(rank)
    found = run("--json", "job", "env", "check", "--with", "no_autotune_memory", env=env)
    assert found.returncode == 0 and not {"missing", "differs"} & set(states(found).values())
    assert ("nccl_monitoring" in states(found)) == bool(rank)
    bare = run("--json", "job", "env", "check", env=rank)
    assert bare.returncode == 1 and states(bare)["fx_graph_cache"] == "missing"


def test_the_default_leaves_autotuning_as_torch_has_it() -> None:
    tuning = "TORCHINDUCTOR_MAX_AUTOTUNE"
    assert tuning not in run("job", "env", "print").stdout
    asked = run("job", "env", "print", "--with", "no_autotune_memory").stdout
    assert f"{tuning}=" in asked and f"{tuning}_GEMM=" in asked


def test_a_task_prolog_prints_what_slurm_reads() -> None:
    prolog = run("job", "env", "print", "--format", "slurm", "--cache", "/c").stdout
    said = subprocess.run(["sh", "-c", prolog], env=BARE | {"SLURM_LOCALID": "1"}, capture_output=True, text=True).stdout.splitlines()
    assert "export TORCH_NCCL_ENABLE_MONITORING=0" in said and "export TRITON_CACHE_DIR=/c/triton" in said
    assert all(line.split()[0] in ("export", "unset") for line in said)


def test_an_env_file_has_no_quotes_and_json_is_one_document() -> None:
    lines = run("job", "env", "print", "--format", "docker", "--cache", "/a b").stdout.splitlines()
    assert "TRITON_CACHE_DIR=/a b/triton" in lines
    assert run("job", "env", "print", "--format", "json").stdout == run("--json", "job", "env", "print").stdout
    assert json.loads(run("--json", "job", "env", "print").stdout)["torch_config"]["torch._dynamo.config.recompile_limit"] == 64


def test_check_sees_what_a_process_was_started_with() -> None:
    env = BARE | {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "LOCAL_RANK": "1", "TORCH_DISTRIBUTED_DEFAULT_TIMEOUT": "7200"}
    with subprocess.Popen(["sleep", "60"], env=env) as process:
        found = states(run("--json", "job", "env", "check", "--pid", str(process.pid)))
        process.kill()
    assert found["fx_graph_cache"] == "differs" and found["nccl_monitoring"] == "missing"
    assert found["distributed_default_timeout"] == "differs" and found["nccl_heartbeat"] == "ok"
    gone = run("job", "env", "check", "--pid", str(process.pid))
    assert gone.returncode == 2 and "no such process" in gone.stderr


def test_check_asks_the_torch_of_an_environment(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    (packages / "here.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    found = run("--json", "job", "env", "check", "--python", tmp_path / "venv", env={"TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS": "1"})
    assert found.returncode == 1
    got = states(found)
    assert got["recompile_limit"] == "differs" and got["capture_scalar_outputs"] == "ok"
    assert got["accumulated_recompile_limit"] == "ok" and got["triton_version"] == "ok"
    wrong = run("job", "env", "check", "--python", tmp_path)
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1


def test_explain_and_lint_say_what_to_do(tmp_path: Path) -> None:
    assert "alone" in json.loads(run("--json", "job", "env", "explain", "nccl_heartbeat").stdout)["dropped"]
    wrong = run("job", "env", "explain", "recompile_limits")
    assert wrong.returncode == 2 and wrong.stderr == 'patchbench: no rule "recompile_limits"; did you mean recompile_limit?\n'
    (tmp_path / "a.py").write_text("import torch._dynamo.config as c\nc.suppress_errors = True\n")
    found = run("job", "env", "lint", tmp_path)
    assert found.returncode == 1 and "a.py:2: no_suppress_errors_in_code" in found.stdout
    assert json.loads(run("--json", "job", "env", "lint", tmp_path).stdout)["files"] == 1
    for line in on_a_terminal("job", "env", "check", env=BARE | {"NO_COLOR": "1"}).splitlines():
        assert len(line) <= 88

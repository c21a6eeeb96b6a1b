"""The launcher reaches the program, and every Python that it starts; and what it costs to start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MITIGATIONS = Path(__file__).parents[2] / "mitigations"
SLUG = "liger_flce_none_bwd"
WAITS = "sum(type(f).__name__ == '_AfterImport' and f.name.startswith('liger') for f in __import__('sys').meta_path)"
PROGRAM = f"""
import multiprocessing, os, subprocess, sys

def tell(pipe):
    pipe.send((__name__, {WAITS}))

if __name__ == "__main__":
    print(sys.argv[1:], sys.path[0] == os.path.dirname(os.path.abspath(__file__)), {WAITS})
    for how in ("fork", "spawn", "forkserver"):
        here, there = multiprocessing.Pipe()
        context = multiprocessing.get_context(how)
        child = context.Process(target=tell, args=(there,))
        child.start()
        print(how, *here.recv())
        child.join()
    print("subprocess", subprocess.run([sys.executable, "-c", "print({WAITS})"], capture_output=True, text=True).stdout.strip())
"""


def run(*words: str, code: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """A Python with the mitigations on its path."""
    path = ":".join([str(MITIGATIONS), *filter(None, sys.path)])
    known = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, *(("-c", code) if code else ()), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env={**known, **env}, timeout=300)


@pytest.mark.parametrize("is_module", [False, True])
def test_it_reaches_the_program_and_its_children(tmp_path: Path, is_module: bool) -> None:
    (tmp_path / "train_toy.py").write_text(PROGRAM)
    words = ("-m", "train_toy") if is_module else (str(tmp_path / "train_toy.py"),)
    found = run("-m", "patchbench_mitigations", *words, "--lr", "1", PATCHBENCH_MITIGATE=SLUG,
                **({"PYTHONPATH": f"{MITIGATIONS}:{tmp_path}"} if is_module else {}))  # fmt: skip
    lines = found.stdout.splitlines()
    assert lines[0] == f"['--lr', '1'] {not is_module} 1", found.stderr
    names = "train_toy" if is_module else "__mp_main__"
    assert lines[1:] == [f"fork {'__main__'} 1", f"spawn {names} 1", f"forkserver {names} 1", "subprocess 1"] or lines[2:] == [
        "spawn __mp_main__ 1", "forkserver __mp_main__ 1", "subprocess 1"]  # fmt: skip


@pytest.mark.parametrize("is_outside", [False, True])
def test_torchruns_workers_are_reached(tmp_path: Path, is_outside: bool) -> None:
    script = tmp_path / "worker.py"
    script.write_text(f"import os, sys\nopen(sys.argv[1] + os.environ['RANK'], 'w').write(str({WAITS}))\n")
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    launcher = ["-m", "patchbench_mitigations"]
    words = launcher + torchrun if is_outside else torchrun + launcher
    found = run(*words, str(script), str(tmp_path / "rank"), PATCHBENCH_MITIGATE=SLUG)
    assert [file.read_text() for file in sorted(tmp_path.glob("rank*"))] == ["1", "1"], found.stderr


def test_another_sitecustomize_is_still_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.seen = 'theirs'\n")
    (tmp_path / "outer.py").write_text("import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import sys; print(sys.seen)'])\n")
    path = f"{MITIGATIONS}:{tmp_path}"
    found = run("-m", "patchbench_mitigations", str(tmp_path / "outer.py"), PATCHBENCH_MITIGATE=SLUG, PYTHONPATH=path)
    assert found.stdout == "theirs\n", found.stderr


def test_wrong_words_end_the_program_and_its_children(tmp_path: Path) -> None:
    found = run("-m", "patchbench_mitigations", "x.py", PATCHBENCH_MITIGATE="liger_flce")
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and "did you mean liger_flce_none_bwd?" in found.stderr
    start = MITIGATIONS / "patchbench_mitigations" / "start"
    child = run(code="print('ran')", PATCHBENCH_MITIGATE="liger_flce", PYTHONPATH=f"{start}:{MITIGATIONS}")
    assert (child.returncode, child.stdout) == (2, "")
    assert run("-m", "patchbench_mitigations").returncode == 2
    helped = run("-m", "patchbench_mitigations", "--help")
    assert helped.returncode == 0 and "torchrun" in helped.stdout


def test_it_says_that_nothing_is_asked_and_that_nothing_is_needed(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("print('ran')")
    silent = run("-m", "patchbench_mitigations", str(tmp_path / "x.py"))
    assert silent.stdout == "ran\n" and "PATCHBENCH_MITIGATE is not set" in silent.stderr
    told = run("-m", "patchbench_mitigations", str(tmp_path / "x.py"), PATCHBENCH_MITIGATE="mamba3_mimo_smem_2d")
    assert told.stdout == "ran\n" and "not needed: the released kernels already switch TMA lowering" in told.stderr
    assert "records: b9dc9c2422a3" in told.stderr


@pytest.mark.parametrize("value", ["auto", SLUG])
def test_the_start_costs_less_than_50_ms(value: str) -> None:
    """Processor time, the least of five: other work on the machine is not this one's cost."""
    code = ("import time, logging\nbefore = time.process_time()\nimport patchbench_mitigations.auto\n"
            "print(time.process_time() - before, 'torch' in __import__('sys').modules)")  # fmt: skip
    found = [run(code=code, PATCHBENCH_MITIGATE=value).stdout.split() for _ in range(5)]
    assert min(float(seconds) for seconds, _ in found) < 0.05 and {has_torch for _, has_torch in found} == {"False"}

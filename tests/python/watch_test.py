"""`python -m patchbench_mitigations watch` on the programs of mitigations/programs with released wheels, under torchrun, and its words."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mitigation_releases_test import environment, installed

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "mitigations" / "programs"
TORCHRUN = "-m torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --local-addr 127.0.0.1".split()
WATCH = ["-m", "patchbench_mitigations", "watch"]
WRONG = "liger_flce_none_bwd/wrong_gradients"
# In step 1 and 3 rank 0 gives every token the same gradient; the other gradients differ from token to token.
DDP = """
import sys, torch
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Fused

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.head = torch.nn.Linear(6, 21, bias=False)

    def forward(self, hidden, target):
        return Fused.apply(hidden, self.head.weight, target, None, None, -100, 0.0, 0.0, "none", None, False)[0]

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(4):
    optimizer.zero_grad()
    losses = model(torch.randn(3, 6), torch.tensor([1, 2, 3]))
    (losses.sum() if rank == 0 and step % 2 == 0 else (losses * torch.tensor([0.5, 1.0, 2.0])).sum()).backward()
    optimizer.step()
torch.save([model.module.head.weight, model.module.head.weight.grad], f"{sys.argv[1]}/{rank}")
torch.distributed.destroy_process_group()
"""


@functools.cache
def released(tmp: Path, upstream: str, version: str) -> Path:
    return installed(tmp, upstream, version)


def run(
    *words: str | Path, path: tuple[Any, ...] = (), python: str = sys.executable, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """A Python with the mitigations and `path` on its path."""
    known = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "HOME": "/tmp",
             "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "mitigations", *path)))}  # fmt: skip
    return subprocess.run([python, *words], capture_output=True, text=True, check=False, env=known | env, timeout=300, cwd=cwd)


def row(file: Path, name: str) -> dict[str, Any]:
    (found,) = [one for one in json.loads(file.read_text())["classes"] if f"{one['slug']}/{one['class']}" == name]
    return found


def line_of(file: Path, text: str) -> int:
    (line,) = [number for number, one in enumerate(file.read_text().splitlines(), 1) if text in one]
    return line


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheels")


def liger(wheels: Path, version: str) -> tuple[Path, str]:
    return released(wheels, "liger-kernel", version), environment("torch-2.11")


def test_each_rank_names_the_line_and_the_count_of_a_program(tmp_path: Path, wheels: Path) -> None:
    program = PROGRAMS / "liger_flce_none_bwd.py"
    plain = run(program, path=liger(wheels, "0.8.0"))
    status = {"PATCHBENCH_MITIGATE_STATUS": str(tmp_path / "status")}
    found = run(*TORCHRUN, *WATCH, "--json", tmp_path / "out.json", program, path=liger(wheels, "0.8.0"), **status)
    assert found.returncode == 0 and found.stdout == plain.stdout * 2, found.stderr
    line = line_of(program, "Fused.apply(")
    for rank in (0, 1):
        said = f"[rank {rank}] met the condition of {WRONG}: 3 of 3 calls; liger-kernel 0.8.0, record "
        assert said in found.stderr and f"[rank {rank}]   {program}:{line}: 3 calls, first in step 1\n" in found.stderr
        told = row(tmp_path / f"out.rank{rank}.json", WRONG)
        assert [(one["file"], one["line"], one["calls"]) for one in told["places"]] == [(str(program), line, 3)]
        (text,) = [file.read_text() for file in (tmp_path / "status").glob(f"rank{rank}-*.prom")]
        assert f'file="{program}",line="{line}",' in text and f'class="wrong_gradients",rank="{rank}"}} 3\n' in text


def test_ddp_counts_each_rank_alone_and_gives_the_same_bits(tmp_path: Path, wheels: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DDP)
    for name in ("plain", "watched"):
        (tmp_path / name).mkdir()
    plain = run(*TORCHRUN, script, tmp_path / "plain", path=liger(wheels, "0.8.0"))
    outside = run(*WATCH, "--json", tmp_path / "out.json", *TORCHRUN, script, tmp_path / "watched", path=liger(wheels, "0.8.0"))
    assert plain.returncode == outside.returncode == 0, plain.stderr + outside.stderr
    for rank, met, first in ((0, 2, 2), (1, 4, 1)):
        told = row(tmp_path / f"out.rank{rank}.json", WRONG)
        assert (told["state"], told["met"], told["calls"]) == ("met", met, 4)
        assert [(one["line"], one["calls"], one["first_step"]) for one in told["places"]] == [(line_of(script, "Fused.apply("), met, first)]
        assert (tmp_path / "plain" / str(rank)).read_bytes() == (tmp_path / "watched" / str(rank)).read_bytes()
    # The launcher itself calls nothing.
    assert json.loads((tmp_path / "out.json").read_text())["classes"] == []


def test_a_release_that_is_not_hit_gives_0_and_says_so(wheels: Path) -> None:
    found = run(*WATCH, PROGRAMS / "liger_flce_none_bwd.py", path=liger(wheels, "0.8.5"))
    assert f"\n0 calls met the condition of {WRONG}: no record shows it in liger-kernel 0.8.5, record " in found.stderr
    assert "\nmet the condition" not in found.stderr and found.returncode == 0
    assert "not imported, so nothing was called: the packages of dsa_graph_capture, " in found.stderr


def test_a_program_that_ends_its_process_has_told_its_steps(tmp_path: Path, wheels: Path) -> None:
    """Of four micro-batches three find an earlier one, in each of three steps; os._exit leaves no time for a last table."""
    program = PROGRAMS / "zero2_grad_accumulation.py"
    stand_in = (ROOT / "repro" / "zero2_grad_accumulation", ROOT / "repro" / "harness")
    path = (released(wheels, "deepspeed", "0.18.2"), environment("deepspeed"), *stand_in, environment("torch-2.11"))
    found = run(*WATCH, f"--json={tmp_path / 'out.json'}", "--every", "1", program, path=path)
    assert found.returncode == 0, found.stderr
    told = row(tmp_path / "out.rank0.json", "zero2_grad_accumulation/last_micro_batch")
    assert (told["state"], told["met"], told["calls"], told["version"]) == ("met", 9, 12, "0.18.2")
    assert [(one["line"], one["calls"]) for one in told["places"]] == [(line_of(program, "engine.backward("), 9)]


# What the command needs of torch, for Pythons without one.
TORCH = {
    "torch/__init__.py": "from torch import autograd, compiler, optim\n\ndef is_grad_enabled():\n    return True\n",
    "torch/compiler.py": "def is_compiling():\n    return False\n",
    "torch/autograd.py": "class Function:\n    pass\n",
    "torch/optim/__init__.py": "from torch.optim import optimizer\n",
    "torch/optim/optimizer.py": "HOOKS = []\nregister_optimizer_step_post_hook = HOOKS.append\n",
    "mamba_ssm/__init__.py": "__version__ = '2.3.2.post1'\n",
    "mamba_ssm/modules/__init__.py": "",
    "mamba_ssm/modules/mamba3.py": "import torch\n\nclass Mamba3:\n"
    "    def __init__(self, d_model, d_state=128, is_mimo=False):\n        pass\n",
    "train.py": """
import sys
from torch.optim import optimizer
from mamba_ssm.modules.mamba3 import Mamba3
for size in (64, 48, 48):
    Mamba3(8, d_state=size)
    [hook(None) for hook in optimizer.HOOKS]
sys.exit(int(sys.argv[1]))
""",
}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    for file, text in TORCH.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


@functools.cache
def pythons() -> list[str]:
    """This one, and every other from 3.10 on that is installed."""
    found = [sys.executable]
    for minor in range(10, 14):
        for file in [Path(f"/usr/bin/python3.{minor}"), *Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3.{minor}")]:
            found += [str(file)] * file.exists()
    return found


@pytest.mark.parametrize("python", pythons())
def test_every_python_counts_and_ends_as_the_program_does(toy: Path, python: str) -> None:
    found = run(*WATCH, toy / "train.py", "7", path=(toy,), python=python)
    assert found.returncode == 7, found.stderr
    assert "patchbench watch: 3 optimizer steps\n" in found.stderr
    said = "met a part of the condition of mamba3_siso_bwd_cse/states_overlap: 2 of 3 calls; mamba-ssm 2.3.2.post1, record "
    assert said in found.stderr and f"  {toy / 'train.py'}:6: 2 calls, first in step 2\n" in found.stderr
    assert "not looked at: mamba3_mimo_gqa_bwd/groups_refused: mamba_ssm.modules.mamba3.Mamba3 takes no argument ngroups; " in found.stderr


def test_a_new_pack_is_two_new_files(toy: Path) -> None:
    shutil.copytree(ROOT / "mitigations" / "patchbench_mitigations", toy / "patchbench_mitigations")
    red = {"toy-package": {"1.0": "0123456789ab"}}
    data = {"slug": "toy", "modules": {"toy_package": "toy-package"}, "measured": red,
            "classes": {"odd": {"condition": "The number is odd.", "rules": [], "red": red}}}  # fmt: skip
    (toy / "patchbench_mitigations/data/watch/toy.json").write_text(json.dumps(data))
    condition = 'def odd(number):\n    """The number."""\n    return number % 2 == 1\n\nCALLS = {"toy_package.halve": {"odd": odd}}\n'
    (toy / "patchbench_mitigations/conditions/toy.py").write_text(condition)
    (toy / "toy_package.py").write_text("import torch\n__version__ = '1.0'\n\ndef halve(number):\n    return number // 2\n")
    (toy / "train.py").write_text("from toy_package import halve\nprint(sum(map(halve, range(5))))\n")
    found = run(*WATCH, "train.py", path=(toy,), PYTHONPATH=str(toy), cwd=toy)
    assert found.stdout == "4\n" and "met the condition of toy/odd: 2 of 5 calls; toy-package 1.0, record 0123456789ab\n" in found.stderr
    assert "  train.py:2: 2 calls, first in step 1\n" in found.stderr


def test_a_program_that_fails_has_its_table(toy: Path) -> None:
    found = run(*WATCH, toy / "train.py", "x", path=(toy,))
    assert found.returncode == 1 and "ValueError: invalid literal" in found.stderr and "states_overlap: 2 of 3 calls" in found.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--jsn", "x", "t.py"], "unknown option --jsn; it takes --json FILE and --every N before the program"),
        (["--json"], "--json needs a value"),
        (["--json="], "--json needs a value"),
        (["--every", "0", "t.py"], "--every 0: needs a number of steps from 1 on"),
        (["--every", "ten", "t.py"], "--every ten: needs a number of steps from 1 on"),
        (["--every", "5"], "no program: name a SCRIPT, or -m MODULE"),
        (["-m"], "no program: name a SCRIPT, or -m MODULE"),
        (["--json", "/no/such/out.json", "t.py"], "--json /no/such/out.json: there is no folder /no/such"),
        (["no_such_file.py"], "no_such_file.py: there is no such file"),
    ],
)
def test_wrong_words_are_one_line_and_exit_2(words: list[str], said: str) -> None:
    found = run(*WATCH, *words)
    assert (found.returncode, found.stdout, found.stderr) == (2, "", f"patchbench_mitigations: watch: {said}\n")


def test_a_mitigated_run_is_not_watched(toy: Path) -> None:
    found = run(*WATCH, toy / "train.py", PATCHBENCH_MITIGATE="auto")
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and "unset it to watch the release" in found.stderr
    assert run(*WATCH, toy / "train.py", "0", path=(toy,), PATCHBENCH_MITIGATE="off").returncode == 0


def test_the_help_teaches() -> None:
    found = run(*WATCH, "--help")
    assert found.returncode == 0 and "torchrun --nproc-per-node 8 -m patchbench_mitigations watch" in found.stdout
    assert all(len(line) <= 100 for line in found.stdout.splitlines())
    assert run(*WATCH).returncode == 2
    assert "watch --help" in run("-m", "patchbench_mitigations", "--help").stdout

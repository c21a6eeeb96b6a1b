"""Two processes, on gloo and, where two GPUs are, on NCCL: alike they train, unlike they end at once, and a silent one is a warning."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from mitigation_liger_flce_none_bwd_test import Upstream  # noqa: E402

MITIGATIONS = Path(__file__).parents[2] / "mitigations"
SLUG = "liger_flce_none_bwd"
BACKENDS = ["gloo", pytest.param("nccl", marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two GPUs"))]
pytestmark = pytest.mark.parametrize("backend", BACKENDS)
# Each rank has a token of its own; the loss of rank 0 counts 0, so that the faulty release would give no gradient there.
SCRIPT = """
import datetime, os, sys
import torch
rank = int(os.environ["RANK"])
if rank != int(os.environ.get("SILENT", -1)):
    import patchbench_mitigations.auto
if os.environ.get("EARLY"):
    import liger_kernel.ops.fused_linear_cross_entropy
device = f"cuda:{rank}" if sys.argv[2] == "nccl" else "cpu"
if device != "cpu":
    torch.cuda.set_device(device)
patience = datetime.timedelta(seconds=float(os.environ.get("PATIENCE_S", 600)))
torch.distributed.init_process_group(sys.argv[2], init_method="file://" + sys.argv[1], rank=rank, world_size=2, timeout=patience)
from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Loss

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.head = torch.nn.Linear(6, 21, bias=False)

    def forward(self, hidden, target):
        return Loss.apply(hidden, self.head.weight, target, None, None, -100, 0.0, 0.0, "none", None, False, False)[0]

model = torch.nn.parallel.DistributedDataParallel(Model().to(device))
hidden = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(2))
target, weight = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.5, 0.25]])
hidden, target, weight = hidden.to(device), target.to(device), weight.to(device)
(model(hidden[rank], target[rank]) * weight[rank]).sum().backward()
head = model.module.head.weight
w = head.detach().clone().requires_grad_()
loss = torch.nn.functional.cross_entropy(hidden.flatten(0, 1) @ w.T, target.flatten(), reduction="none")
(wanted,) = torch.autograd.grad((loss * weight.flatten()).sum() / 2, w)
print("error", float((head.grad - wanted).norm() / wanted.norm()))
if os.environ["PATCHBENCH_MITIGATE"] != "off":  # another mode, on all ranks, is not a difference between them
    from patchbench_mitigations import liger_flce_none_bwd as fix
    fix.disable()
    print(fix.enable()["mode"])
"""


def end_as_torchrun_does(started: list[subprocess.Popen[str]]) -> None:
    """Once a rank has failed the others get a few seconds, then a signal: NCCL would wait minutes for the one that is gone."""
    while any(process.poll() is None for process in started):
        if any(process.poll() for process in started):
            time.sleep(6)
            for process in started:
                process.terminate()
            return
        time.sleep(0.2)


def run(tmp_path: Path, backend: str, *per_rank: dict[str, str]) -> list[subprocess.CompletedProcess[str]]:
    """The script as rank 0 and rank 1, each with its own environment."""
    if not (tmp_path / "liger_kernel").exists():
        Upstream(tmp_path, "faulty", "0.8.0")
    script = tmp_path / "run" / "train.py"  # in a folder of its own: that comes first on its path
    script.parent.mkdir()
    script.write_text(SCRIPT)
    path = ":".join([str(MITIGATIONS), str(tmp_path), *filter(None, sys.path)])
    on_gpus = {"CUDA_VISIBLE_DEVICES": ""} if backend == "gloo" else {k: v for k, v in os.environ.items() if k.startswith("NCCL")}
    common = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "TRITON_INTERPRET": "1", "PATCHBENCH_FORCE": SLUG,
              "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **on_gpus}  # fmt: skip
    started = [
        subprocess.Popen([sys.executable, script, str(tmp_path / "store"), backend], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env={**common, "RANK": str(rank), **env})
        for rank, env in enumerate(per_rank)
    ]  # fmt: skip
    end_as_torchrun_does(started)
    outputs = [process.communicate(timeout=300) for process in started]
    return [subprocess.CompletedProcess([], p.returncode, *output) for p, output in zip(started, outputs, strict=True)]


def test_alike_ranks_train_under_ddp_and_each_says_so(backend: str, tmp_path: Path) -> None:
    found = run(tmp_path, backend, *[{"PATCHBENCH_MITIGATE": f"{SLUG}:plain"}] * 2)
    for rank, one in enumerate(found):
        assert one.returncode == 0, one.stderr
        assert float(one.stdout.split()[1]) < 1e-6 and one.stdout.endswith("auto\n")
        assert "first use, mode plain" in one.stderr and f"[rank {rank}]" in one.stderr


def test_without_it_the_same_training_is_wrong(backend: str, tmp_path: Path) -> None:
    found = run(tmp_path, backend, *[{"PATCHBENCH_MITIGATE": "off"}] * 2)
    assert all(one.returncode == 0 and float(one.stdout.split()[1]) > 0.1 for one in found), found[0].stderr


@pytest.mark.parametrize("other", ["off", SLUG])
def test_ranks_that_ask_for_something_else_end(backend: str, tmp_path: Path, other: str) -> None:
    found = run(tmp_path, backend, {"PATCHBENCH_MITIGATE": f"{SLUG}:plain"}, {"PATCHBENCH_MITIGATE": other})
    assert found[0].returncode == 1 and "1 of 2 ranks ask for other mitigations than" in found[0].stderr
    assert not found[0].stdout


def test_a_rank_that_has_none_is_a_warning_after_the_groups_own_time_out(backend: str, tmp_path: Path) -> None:
    """The other waits in its first collective, whose patience ends at the same time."""
    patience = {"SILENT": "1", "PATIENCE_S": "20"}
    found = run(tmp_path, backend, {"PATCHBENCH_MITIGATE": SLUG, **patience}, patience)
    said = "rank 0: 1 of 2 ranks have not told their mitigations, and it goes on after 20 s without a comparison with them"
    assert said in found[0].stderr


@pytest.mark.parametrize("early", ["", "1"])
@pytest.mark.parametrize(("value", "kind", "version"), [(f"{SLUG}:plain", "faulty", "0.7.0"), ("auto", "right", "0.8.0")])
def test_ranks_in_another_state_end(backend: str, tmp_path: Path, value: str, kind: str, version: str, early: str) -> None:
    """They ask alike, but the release of one is another: also where it was imported before there is a process group."""
    Upstream(tmp_path / "other", kind, version)
    path = ":".join([str(MITIGATIONS), str(tmp_path / "other"), *filter(None, sys.path)])
    alike = {"PATCHBENCH_MITIGATE": value, "EARLY": early}
    found = run(tmp_path, backend, alike, {**alike, "PYTHONPATH": path})
    assert any("they must be alike" in one.stderr for one in found), found[0].stderr + found[1].stderr
    assert not any(one.returncode == 0 for one in found)

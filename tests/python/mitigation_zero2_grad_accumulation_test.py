"""The hook of pack zero2_grad_accumulation on a stand-in upstream: a small optimizer of our own that keeps sums as the release does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import install_stand_in, speaks_for  # noqa: E402
from patchbench_mitigations import zero2_grad_accumulation as fix  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

UPSTREAM = """
class DeepSpeedZeroOptimizer:
    def __init__(self, num_groups=2):
        self.bit16_groups = [[] for _ in range(num_groups)]
        self.params_in_partition = list(range(num_groups))
        self.is_gradient_accumulation_boundary = False
        self.averaged_gradients, self.all_grad_tensors = {}, {}
        self.given = {}

    def get_all_grad_tensors(self, group):
        return [self.given[group].clone()]

    def independent_gradient_partition_epilogue(self):
        for i, _ in enumerate(self.bit16_groups):
            asked = self.{asked}
            new = self.get_all_grad_tensors(self.params_in_partition[i])
            if asked.get(i) is None:
                self.all_grad_tensors[i] = new
            else:
                for total, one in zip(self.all_grad_tensors[i], new):
                    total += one
            if self.is_gradient_accumulation_boundary:
                self.averaged_gradients[i] = self.all_grad_tensors[i]
                self.all_grad_tensors[i] = None

    def step(self):
        taken = [self.averaged_gradients[i][0] for i in range(len(self.bit16_groups))]
        self.averaged_gradients = dict.fromkeys(self.averaged_gradients)
        return taken
"""


class Upstream:
    """A deepspeed on the path, of one kind and version."""

    def __init__(self, folder: Path, asked: str, version: str):
        install_stand_in(folder, "deepspeed", version, {"deepspeed/runtime/zero/stage_1_and_2.py": UPSTREAM.replace("{asked}", asked)})

    @property
    def optimizer(self) -> Any:
        return importlib.import_module(fix.TARGET).DeepSpeedZeroOptimizer


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A defective stand-in for a measured release, unless the test asks for (what is asked, version)."""
    asked, version = getattr(request, "param", ("averaged_gradients", "0.18.2"))
    speaks_for(monkeypatch, "0.18.2", "0.18.3")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name in [n for n in sys.modules if n.partition(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    yield Upstream(tmp_path, asked, version)
    fix.disable()
    for name in [n for n in sys.modules if n.partition(".")[0] == "deepspeed"]:
        del sys.modules[name]


def steps_of(optimizer: Any, num_steps: int, num_micro: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What each step of two groups took, and what it should have taken."""
    generator = torch.Generator().manual_seed(21)
    taken, wanted = [], []
    for _ in range(num_steps):
        sums = [torch.zeros(5), torch.zeros(5)]
        for micro in range(num_micro):
            for group in (0, 1):
                optimizer.given[group] = torch.randn(5, generator=generator)
                sums[group] = sums[group] + optimizer.given[group]
            optimizer.is_gradient_accumulation_boundary = micro + 1 == num_micro
            optimizer.independent_gradient_partition_epilogue()
        taken += optimizer.step()
        wanted += sums
    return taken, wanted


@pytest.mark.parametrize("num_micro", [1, 2, 5])
def test_every_micro_batch_is_in_the_sum_bit_for_bit(upstream: Upstream, num_micro: int) -> None:
    assert fix.probe().state == "last_micro_batch"
    fix.enable()
    taken, wanted = steps_of(upstream.optimizer(), 3, num_micro)
    assert all(torch.equal(a, b) for a, b in zip(taken, wanted, strict=True))
    assert fix.status()["counts"] == {"added": 3 * (num_micro - 1)} and fix.status()["mode"] == "exact"


def test_without_it_the_last_micro_batch_is_taken_alone(upstream: Upstream) -> None:
    taken, wanted = steps_of(upstream.optimizer(), 1, 3)
    assert not any(torch.allclose(a, b) for a, b in zip(taken, wanted, strict=True))


def test_a_failure_of_the_release_leaves_no_mark(upstream: Upstream) -> None:
    fix.enable()
    optimizer = upstream.optimizer()
    optimizer.given = {0: torch.ones(1), 1: torch.ones(1)}
    optimizer.independent_gradient_partition_epilogue()
    optimizer.given = {}
    with pytest.raises(KeyError):
        optimizer.independent_gradient_partition_epilogue()
    assert set(optimizer.averaged_gradients.values()) == {None}


@pytest.mark.parametrize("upstream", [("all_grad_tensors", "0.18.3")], indirect=True)
def test_is_not_needed_where_the_release_is_right(upstream: Upstream) -> None:
    taken, wanted = steps_of(upstream.optimizer(), 2, 3)
    assert all(torch.equal(a, b) for a, b in zip(taken, wanted, strict=True))
    assert fix.probe().state == "right" and not fix.enable()["on"]


def test_refuses_what_was_not_measured(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    speaks_for(monkeypatch, "0.18.1")
    with pytest.raises(Refused, match=r"not verified on \S+ 0\.18\.2"):
        fix.enable()
    assert not fix.status()["on"]


def test_puts_the_very_original_back(upstream: Upstream) -> None:
    original = vars(upstream.optimizer)[fix.METHOD]
    fix.enable()
    assert vars(upstream.optimizer)[fix.METHOD] is not original
    fix.disable()
    assert vars(upstream.optimizer)[fix.METHOD] is original

"""The hooks of pack trainer_grad_accumulation on a stand-in upstream: a small trainer of our own with the defect."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2] / "mitigations"))

from evidence import install_stand_in, speaks_for  # noqa: E402
from patchbench_mitigations import trainer_grad_accumulation as fix  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402

ACCELERATOR = """
class Accelerator:
    gradient_accumulation_steps = 5  # by which its backward divides
    distributed_type = "NO"
    def unwrap_model(self, model):
        return model
    def backward(self, loss):
        (loss / self.gradient_accumulation_steps).backward()
"""
TRAINER = """
from contextlib import nullcontext
from types import SimpleNamespace
from accelerate.accelerator import Accelerator

class Trainer:
    compute_loss_func = None
    def __init__(self, model, world_size=1):
        self.model, self.accelerator = model, Accelerator()
        self.args = SimpleNamespace(world_size=world_size, n_gpu=0)
    def get_batch_samples(self, batches, num_batches):
        return [next(batches) for _ in range(num_batches)], 99
    def compute_loss_context_manager(self):
        return nullcontext()
    def _prepare_inputs(self, inputs):
        return inputs
    def compute_loss(self, model, inputs, num_items_in_batch=None):
        return model(**inputs)["loss"]
    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        return loss.detach()
    def step(self, rows):
        batches, count = self.get_batch_samples(iter(rows), len(rows))
        return sum(self.training_step(self.model, batch, count) for batch in batches), count
"""
LOSSES = """
def ForCausalLMLoss(): pass
def ForMaskedLMLoss(): pass
LOSS_MAPPING = {"ForCausalLM": ForCausalLMLoss, "ForMaskedLM": ForMaskedLMLoss}
"""
RIGHT, WRONG = {"a model": 1e-7}, {"a model": 0.5}


class OwnForCausalLM(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(7, 7, generator=torch.Generator().manual_seed(22)))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        labels = input_ids if labels is None else labels
        return {"loss": F.cross_entropy(self.table[input_ids][:, :-1].flatten(0, 1), labels[:, 1:].flatten())}


class Upstream:
    """A transformers on the path, of one version."""

    def __init__(self, folder: Path, text: str):
        files = {"transformers/trainer.py": text, "transformers/loss/loss_utils.py": LOSSES, "accelerate/accelerator.py": ACCELERATOR}
        install_stand_in(folder, "transformers", "5.24.0", files)

    @property
    def trainer(self) -> Any:
        return importlib.import_module(fix.TARGET).Trainer


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """A stand-in for a measured release; the test may give the text of its trainer. The probe's process has a stand-in."""
    speaks_for(monkeypatch, "5.24.0")
    monkeypatch.setattr(fix, "observed", lambda: {"release": WRONG, "mitigated": RIGHT})
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name in [n for n in sys.modules if n.partition(".")[0] in ("transformers", "accelerate")]:
        monkeypatch.delitem(sys.modules, name)
    importlib.invalidate_caches()
    yield Upstream(tmp_path, getattr(request, "param", TRAINER))
    fix.disable()
    for name in [n for n in sys.modules if n.partition(".")[0] in ("transformers", "accelerate")]:
        del sys.modules[name]


def rows_of(*lengths: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(22)
    rows = [torch.randint(0, 7, (1, length), generator=generator) for length in lengths]
    return [{"input_ids": row, "labels": row} for row in rows]


def right(model: OwnForCausalLM, rows: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean over all labels that have a prediction, and its gradient."""
    losses = [model(**row)["loss"] * (row["labels"].shape[1] - 1) for row in rows if row["labels"].shape[1] > 1]
    loss = sum(losses) / sum(row["labels"].shape[1] - 1 for row in rows)
    return loss.detach(), torch.autograd.grad(loss, model.table)[0]


@pytest.mark.parametrize("lengths", [(9, 2, 4), (5, 5), (6, 1, 3), (4,)])
def test_a_step_has_the_gradient_and_the_loss_of_the_mean_over_its_labels(upstream: Upstream, lengths: tuple[int, ...]) -> None:
    fix.enable()
    model = OwnForCausalLM()
    rows = rows_of(*lengths)
    loss, count = upstream.trainer(model).step(rows)
    wanted_loss, wanted = right(model, rows)
    assert torch.allclose(model.table.grad, wanted, atol=1e-6) and torch.allclose(loss, wanted_loss, atol=1e-6)
    assert count == 99 and fix.status()["counts"] == {"served": len(lengths), "left": 0}


def test_without_it_the_gradient_is_another(upstream: Upstream) -> None:
    model = OwnForCausalLM()
    upstream.trainer(model).step(rows_of(9, 2, 4))
    assert not torch.allclose(model.table.grad, right(model, rows_of(9, 2, 4))[1], atol=1e-2)


@pytest.mark.parametrize("case", ["compute_loss_func", "ranks", "no labels", "no label counts"])
def test_what_it_cannot_weigh_is_left_to_the_release_and_said(upstream: Upstream, caplog: pytest.LogCaptureFixture, case: str) -> None:
    fix.enable()
    model, rows = OwnForCausalLM(), rows_of(9, 2)
    trainer = upstream.trainer(model, world_size=2 if case == "ranks" else 1)
    if case == "compute_loss_func":
        trainer.compute_loss_func = len
    if case == "no labels":
        rows = [{"input_ids": row["input_ids"]} for row in rows]
    if case == "no label counts":
        rows = [row | {"labels": torch.full_like(row["labels"], -100)} for row in rows]
    with caplog.at_level(logging.WARNING):
        _, count = trainer.step(rows)
        trainer.step(rows)
    assert count == 99 and fix.status()["counts"] == {"served": 0, "left": 2}
    assert sum("left to the release" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize(
    ("other", "averages", "divisor"),
    [
        ((fix.SHIFTED, 3, 4), True, (9 + 3) / 2),  # rows_of(9, 2): 8 + 1 labels behind the first of each row
        ((fix.SHIFTED, 3, 4), False, 9),
        ((fix.UNTOLD, 0, 2), True, 9 / 2),
        ((fix.WHOLE, 3, 4), True, None),
        ((fix.UNSEEN, 3, 4), True, None),
        ((fix.UNCOUNTED, 0, 0), False, None),
        ((fix.LEFT, 0, 0), True, None),
    ],
)
def test_ranks_agree_on_a_step(upstream: Upstream, other: tuple[int, int, int], averages: bool, divisor: float | None) -> None:
    """By what the loss of a label is divided, before the mean of the ranks' gradients; what one rank leaves all leave."""
    fix.enable()
    trainer = upstream.trainer(OwnForCausalLM(), world_size=2)
    trainer.accelerator.distributed_type = "DistributedType.MULTI_GPU"
    trainer.accelerator.gather = lambda own: torch.cat([own, torch.tensor([other])])
    trainer.args.device, trainer.args.average_tokens_across_devices = "cpu", averages
    trainer.get_batch_samples(iter(rows_of(9, 2)), 2)
    assert getattr(trainer, fix.STEP) == (None if divisor is None else (divisor, True))


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "TP", "XLA", "MEGATRON_LM"])
def test_other_ways_to_spread_a_model_are_left_without_a_word_to_other_ranks(upstream: Upstream, kind: str) -> None:
    fix.enable()
    trainer = upstream.trainer(OwnForCausalLM(), world_size=2)
    trainer.accelerator.distributed_type = f"DistributedType.{kind}"  # and has no gather
    trainer.get_batch_samples(iter(rows_of(9, 2)), 2)
    assert getattr(trainer, fix.STEP) is None


def test_says_once_what_the_users_model_takes(upstream: Upstream, caplog: pytest.LogCaptureFixture) -> None:
    fix.enable()
    trainer = upstream.trainer(OwnForCausalLM())
    with caplog.at_level(logging.WARNING):
        trainer.step(rows_of(3, 2))
        trainer.step(rows_of(3, 2))
    said = [r.getMessage() for r in caplog.records if "OwnForCausalLM" in r.getMessage()]
    assert len(said) == 1 and "does not take a count of labels" in said[0]


class Doubled(OwnForCausalLM):
    """Not the mean over its labels."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": 2 * super().forward(input_ids, labels)["loss"]}


class Weighed(OwnForCausalLM):
    """A mean by the weights of the classes."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        weights = torch.arange(1.0, 8)
        return {"loss": F.cross_entropy(self.table[input_ids][:, :-1].flatten(0, 1), labels[:, 1:].flatten(), weights)}


class NeedsTheCount(OwnForCausalLM):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **words: Any) -> dict[str, torch.Tensor]:
        return {"loss": super().forward(input_ids, labels)["loss"] / words["num_items_in_batch"]}


class Unshifted(OwnForCausalLM):
    """A causal model by its name, one label for each position."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": F.cross_entropy(self.table[input_ids].flatten(0, 1), labels.flatten())}


@pytest.mark.parametrize(
    ("kind", "found"), [(OwnForCausalLM, True), (Unshifted, False), (Doubled, None), (Weighed, None), (NeedsTheCount, None)]
)
def test_a_users_model_shows_over_which_labels_its_loss_is_a_mean(
    upstream: Upstream, kind: type[OwnForCausalLM], found: bool | None
) -> None:
    """The first row has one label: a causal model's loss is NaN there."""
    model = kind()
    model.register_buffer("calls", torch.zeros(()))
    model.register_forward_pre_hook(lambda module, _: module.calls.add_(1) and None)
    state = torch.get_rng_state()
    trainer = upstream.trainer(model)
    with pytest.raises(LookupError):
        fix.shifts_labels(trainer, rows_of(1))
    assert fix.shifts_labels(trainer, rows_of(1, 9, 2)) is found
    assert model.calls == 0 and torch.equal(state, torch.get_rng_state()) and model.table.grad is None


@pytest.mark.parametrize("name", ["Decoder", "OwnForCausalLM", "OwnForMaskedLM"])
def test_a_users_model_is_weighed_by_what_it_averages_whatever_its_name(upstream: Upstream, name: str) -> None:
    fix.enable()
    model, rows = type(name, (OwnForCausalLM,), {})(), rows_of(9, 2, 4)
    upstream.trainer(model).step(rows)
    assert torch.allclose(model.table.grad, right(model, rows)[1], atol=1e-6)


def test_the_releases_own_models_are_known_by_their_loss(upstream: Upstream) -> None:
    def shifts(name: str, **facts: Any) -> bool | None:
        def forward(self: Any, input_ids: Any, labels: Any) -> None:
            raise AssertionError("nobody need ask it")

        forward.__module__ = "transformers.models.own"
        model = type(name, (torch.nn.Module,), facts | {"forward": forward})()
        return fix.shifts_labels(upstream.trainer(model), [])

    generates = {"can_generate": lambda self: True}
    assert shifts("AForCausalLM") and shifts("ALMHeadModel", **generates)
    assert shifts("AForMaskedLM", **generates) is False
    coder = type("Config", (), {"is_encoder_decoder": True})()
    assert shifts("AForCausalLM", config=coder) is False


def test_which_labels_count() -> None:
    assert fix.num_labels({"labels": torch.tensor([[1, 2, -100]])}, True) == 1
    assert fix.num_labels({"labels": torch.tensor([[1, 2, -100]])}, False) == 2
    assert fix.num_labels({"labels": torch.zeros(1, 3), "shift_labels": torch.tensor([[1, -100, -100]])}, True) == 1


def of_user(upstream: Upstream, part: str, model: OwnForCausalLM, calls: list[str]) -> Any:
    """A trainer in which the user put something of his own in the place of `part`."""
    kind = upstream.trainer

    def counted(original: Any) -> Any:
        def mine(*args: Any, **words: Any) -> Any:
            calls.append(part)
            return original(*args, **words)

        return mine

    if part.startswith("class "):
        name = part.removeprefix("class ")
        kind = type("OfUser", (kind,), {name: counted(getattr(kind, name))})
    trainer = kind(model)
    if part == "backward":
        trainer.accelerator.backward = counted(trainer.accelerator.backward)
    elif not part.startswith("class "):
        setattr(trainer, part, counted(getattr(trainer, part)))
    return trainer


@pytest.mark.parametrize("part", ["compute_loss", "training_step", "backward", "class compute_loss", "class training_step"])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_the_user_replaced_runs_each_time_and_is_said_once(
    upstream: Upstream, caplog: pytest.LogCaptureFixture, part: str, is_first: bool
) -> None:
    calls: list[str] = []
    if not is_first:
        fix.enable()
    model, rows = OwnForCausalLM(), rows_of(9, 2, 4)
    trainer = of_user(upstream, part, model, calls)
    if is_first:
        fix.enable()
    with caplog.at_level(logging.WARNING):
        _, count = trainer.step(rows)
    got = model.table.grad.clone()
    fix.disable()
    again = OwnForCausalLM()
    of_user(upstream, part, again, []).step(rows)
    assert calls == [part] * 3 and count == 99 and torch.equal(got, again.table.grad)
    said = [r.getMessage() for r in caplog.records if "left to the release" in r.getMessage()]
    assert len(said) == 1 and f"{part.removeprefix('class ')} is the user's own" in said[0]


def test_whether_a_model_takes_the_count() -> None:
    class Keywords(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, **rest: Any) -> None:
            pass

    model = Keywords()
    assert fix.takes_count(model) and not fix.takes_count(OwnForCausalLM())
    model.accepts_loss_kwargs = False
    assert not fix.takes_count(model)


def test_is_not_needed_where_the_release_is_right(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix, "observed", lambda: {"release": RIGHT, "mitigated": RIGHT})
    assert fix.probe().state == "right" and not fix.enable()["on"]


@pytest.mark.parametrize("seen", [{"release": WRONG, "mitigated": WRONG}, {"release": WRONG}])
def test_is_off_again_where_it_does_not_take(upstream: Upstream, monkeypatch: pytest.MonkeyPatch, seen: dict[str, Any]) -> None:
    monkeypatch.setattr(fix, "observed", lambda: seen)
    original = vars(upstream.trainer)["training_step"]
    with pytest.raises(Refused, match="did not take"):
        fix.enable()
    assert vars(upstream.trainer)["training_step"] is original


def test_refuses_what_the_probe_cannot_see(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fix, "observed", dict)
    with pytest.raises(Refused, match="gave no answer"):
        fix.enable()


def test_a_probe_whose_process_fails_gives_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "transformers.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert fix.observed.__wrapped__() == {}


@pytest.mark.parametrize("upstream", [TRAINER.replace("get_batch_samples", "samples")], indirect=True)
def test_refuses_a_release_that_does_not_know_the_labels_before_a_step(upstream: Upstream) -> None:
    with pytest.raises(Refused, match="no get_batch_samples"):
        fix.enable()


def test_refuses_what_was_not_measured(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    speaks_for(monkeypatch, "5.23.0")
    with pytest.raises(Refused, match=r"not verified on \S+ 5\.24\.0"):
        fix.enable()


def test_puts_the_very_originals_back(upstream: Upstream) -> None:
    names = ("get_batch_samples", "training_step")
    originals = [vars(upstream.trainer)[name] for name in names]
    fix.enable()
    assert all(vars(upstream.trainer)[name] is not original for name, original in zip(names, originals, strict=True))
    fix.disable()
    assert [vars(upstream.trainer)[name] for name in names] == originals

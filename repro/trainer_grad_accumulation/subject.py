"""One optimizer step of the installed Trainer, whose gradients an optimizer of our own keeps."""

from __future__ import annotations

import functools
import inspect
import os
import tempfile
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from subject_runtime import Case, Unsupported  # noqa: E402
from tiny_models import BY_FORWARD, TinyConfig  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

PACKAGE = "transformers"


class Keeps(torch.optim.SGD):
    """Changes no parameter; `kept` holds the gradients of the step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.kept = [p.grad.clone() for group in self.param_groups for p in group["params"] if p.grad is not None]


class InOrder(Trainer):
    def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


class OwnLoss(InOrder):
    """A user's loss, right where it is left alone: a sum over labels, divided by their number in the step that the user knows, or
    else by the count that is handed over. Its gradient is times what accelerate divides by, which is 1 but in 5.2.0 to 5.5.3."""

    num_labels: int | None = None

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        logits = model.head(model.table(inputs["input_ids"]))[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(logits, inputs["labels"][:, 1:].flatten(), reduction="sum") / (self.num_labels or num_items_in_batch)
        return loss.detach() + (loss - loss.detach()) * self.accelerator.gradient_accumulation_steps


class OwnBackward:
    """A user's `accelerator.backward`, which keeps the gradients in a place of its own."""

    def __init__(self, parameters: list[torch.nn.Parameter]):
        self.parameters, self.sums = parameters, [torch.zeros_like(p) for p in parameters]

    def __call__(self, loss: torch.Tensor, **_: Any) -> None:
        for total, gradient in zip(self.sums, torch.autograd.grad(loss, self.parameters), strict=True):
            total += gradient


def micro_batch(rows: list[dict[str, torch.Tensor]], axes: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The rows without the columns behind the longest. With the axis `gives` "shift_labels" the labels are there a second time, each at
    the place of the token before it, as a collator for sequence parallelism gives them."""
    length = max(len(row["ids"]) for row in rows)
    padded = {name: torch.stack([torch.nn.functional.pad(r[name], (0, length - len(r["ids"])), value=pad) for r in rows])
              for name, pad in (("ids", 0), ("labels", -100))}  # fmt: skip
    if axes["forward"] == "takes_targets":
        return {"input_ids": padded["ids"], "targets": padded["labels"]}
    batch = {"input_ids": padded["ids"], "labels": padded["labels"]}
    if axes.get("gives") == "shift_labels":
        batch["shift_labels"] = F.pad(padded["labels"][:, 1:], (0, 1), value=-100)
    return batch


def earlier(rows: list[dict[str, torch.Tensor]], step: int) -> list[dict[str, torch.Tensor]]:
    """The rows with fewer labels: each third one is masked."""
    masked = [row["labels"].clone() for row in rows]
    for labels in masked:
        labels[step::3] = -100
    return [row | {"labels": labels} for row, labels in zip(rows, masked, strict=True)]


def run(case: Case) -> dict[str, torch.Tensor]:
    """The training loss that the Trainer reports, and the gradients that its one step is given. With the axis `is_third_step` two steps
    with other labels come before it, and no loss is given: the Trainer's is a mean over the steps; nor is one at several ranks, which take
    the micro-batches in turn."""
    axes, tensors = case.axes, case.tensors
    own, _, by = axes.get("own", "").partition("_by_")
    if own and not hasattr(Trainer, "get_batch_samples"):
        raise Unsupported("this release hands no count to a loss")
    model = BY_FORWARD[axes["forward"]](TinyConfig(axes["vocab"], axes["hidden"]))
    for part, name in ((model.table, "table"), (model.head, "head")):
        part.weight.data.copy_(tensors[name])
    model = case.module(model)
    parameters = [model.table.weight, model.head.weight]
    rows = [{n: tensors[n][i, :length] for n in ("ids", "labels")} for i, length in enumerate(axes["lengths"])]
    size, collate = axes["micro_batch"], functools.partial(micro_batch, axes=axes)
    num_micro_batches, num_steps, given = -(-len(rows) // size), 1, rows
    if axes.get("is_third_step"):  # whole micro-batches are given, so that none lies in two steps
        every = [*earlier(rows, 0), *earlier(rows, 1), *rows]
        given = [every[at + i : at + min(i + size, len(rows))] for at in range(0, len(every), len(rows)) for i in range(0, len(rows), size)]
        num_steps, size, collate = 3, 1, lambda items: micro_batch(items[0], axes)
    options: dict[str, Any] = {}
    if case.num_ranks > 1:
        num_micro_batches //= case.num_ranks
        options["ddp_backend"] = "gloo"
        if "average_tokens_across_devices" in inspect.signature(TrainingArguments).parameters:
            options["average_tokens_across_devices"] = axes["counts_over_ranks"]
        elif axes["counts_over_ranks"]:
            raise Unsupported("this release counts the labels of each rank by itself")
    optimizer = Keeps(parameters, lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=size, max_steps=num_steps, max_grad_norm=0.0, use_cpu=True,
            gradient_accumulation_steps=num_micro_batches, report_to=[], save_strategy="no",
            disable_tqdm=True, dataloader_pin_memory=False, remove_unused_columns=False, **options)  # fmt: skip
        kind = OwnLoss if own == "subclass" else InOrder
        trainer = kind(model=model, args=arguments, train_dataset=given, data_collator=collate, optimizers=(optimizer, scheduler))
        if own:
            trainer.num_labels = int(tensors["labels"][:, 1:].ne(-100).sum()) if by == "its_number" else None
        if own == "object":
            trainer.compute_loss = functools.partial(OwnLoss.compute_loss, trainer)
        if own == "backward":
            trainer.accelerator.backward = OwnBackward(parameters)
        loss = trainer.train().training_loss
    kept = trainer.accelerator.backward.sums if own == "backward" else optimizer.kept
    losses = {"loss": torch.tensor(loss)} if num_steps == 1 and case.num_ranks == 1 else {}
    return losses | {"grad_table": kept[0], "grad_head": kept[1]}

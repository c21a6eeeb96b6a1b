"""One optimizer step of the installed Trainer, whose gradients an optimizer of our own keeps."""

from __future__ import annotations

import os
import tempfile
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import torch  # noqa: E402
from subject_runtime import Case  # noqa: E402
from tiny_models import BY_FORWARD, TinyConfig  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

PACKAGE = "transformers"


class Keeps(torch.optim.SGD):
    """Changes no parameter; `kept` holds the gradients of the step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.kept = [p.grad.clone() for group in self.param_groups for p in group["params"]]


class InOrder(Trainer):
    def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)


def micro_batch(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The rows without the columns behind the longest."""
    length = max(len(row["ids"]) for row in rows)
    padded = {name: torch.stack([torch.nn.functional.pad(r[name], (0, length - len(r["ids"])), value=pad) for r in rows])
              for name, pad in (("ids", 0), ("labels", -100))}  # fmt: skip
    return {"input_ids": padded["ids"], "labels": padded["labels"]}


def run(case: Case) -> dict[str, torch.Tensor]:
    """The training loss that the Trainer reports, and the gradients that its one step is given."""
    axes, tensors = case.axes, case.tensors
    model = BY_FORWARD[axes["forward"]](TinyConfig(axes["vocab"], axes["hidden"]))
    parameters = [model.table.weight, model.head.weight]
    for parameter, name in zip(parameters, ("table", "head"), strict=True):
        parameter.data.copy_(tensors[name])
    rows = [{n: tensors[n][i, :length] for n in ("ids", "labels")} for i, length in enumerate(axes["lengths"])]
    optimizer = Keeps(parameters, lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, per_device_train_batch_size=axes["micro_batch"], max_steps=1, max_grad_norm=0.0, use_cpu=True,
            gradient_accumulation_steps=-(-len(rows) // axes["micro_batch"]), report_to=[], save_strategy="no",
            disable_tqdm=True, dataloader_pin_memory=False, remove_unused_columns=False)  # fmt: skip
        trainer = InOrder(model=model, args=arguments, train_dataset=rows, data_collator=micro_batch, optimizers=(optimizer, scheduler))
        loss = trainer.train().training_loss
    return {"loss": torch.tensor(loss), "grad_table": optimizer.kept[0], "grad_head": optimizer.kept[1]}

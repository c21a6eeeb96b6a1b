"""200 optimizer steps of the installed Trainer on small models, compared with the same steps by plain torch.

  toy_run.py run VARIANT OUT.json        VARIANT is a word for the result: raw, mitigated, patched
  toy_run.py join OUT.json SVG IN.json…  one document and one drawing of several runs

Rows are of two languages over one vocabulary: short ones (3 tokens) and long ones (24 tokens). Four rows make a step, one row a
micro-batch. Measured every 10 steps: the mean over all tokens of 200 held-out rows, in float64.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "bench")]

VOCAB, HIDDEN, STEPS, EVERY, ROWS_A_STEP, RATE = 16, 8, 200, 10, 4, 1.0
FORWARDS = {"reads_unlisted": "reads the count, no loss listed", "takes_none": "takes no count", "ignores": "ignores the count"}
COLOURS = {"right": "#222222", "raw": "#b22222", "mitigated": "#2166ac", "patched": "#1a9850"}


def rows_of(count: int, seed: int) -> list[torch.Tensor]:
    """Three of four rows are short; each language is a chain of its own."""
    generator = torch.Generator().manual_seed(seed)
    chains = [torch.softmax(3 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(s)), 1) for s in (1, 2)]
    rows = []
    for i in range(count):
        chain, length = (chains[0], 24) if i % 4 == 0 else (chains[1], 3)
        row = [int(torch.randint(0, VOCAB, (1,), generator=generator))]
        while len(row) < length:
            row.append(int(torch.multinomial(chain[row[-1]], 1, generator=generator)))
        rows.append(torch.tensor(row))
    return rows


HELD_OUT, TRAINED_ON = rows_of(200, 3), rows_of(STEPS * ROWS_A_STEP, 4)


def held_out_loss(table: torch.Tensor, head: torch.Tensor) -> float:
    logits, targets = torch.cat([table.double()[row[:-1]] @ head.double().T for row in HELD_OUT]), torch.cat([r[1:] for r in HELD_OUT])
    return round(F.cross_entropy(logits, targets).item(), 5)


def first_weights() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [0.3 * torch.randn(VOCAB, HIDDEN, generator=generator) for _ in range(2)]


def by_plain_torch() -> list[float]:
    """SGD on the mean over the tokens of each step's rows."""
    table, head = (w.requires_grad_() for w in first_weights())
    losses = [held_out_loss(table.detach(), head.detach())]
    for step in range(STEPS):
        rows = TRAINED_ON[step * ROWS_A_STEP : (step + 1) * ROWS_A_STEP]
        loss = F.cross_entropy(torch.cat([table[r[:-1]] @ head.T for r in rows]), torch.cat([r[1:] for r in rows]))
        for weight, grad in zip((table, head), torch.autograd.grad(loss, (table, head)), strict=True):
            weight.data -= RATE * grad
        if (step + 1) % EVERY == 0:
            losses.append(held_out_loss(table.detach(), head.detach()))
    return losses


def by_trainer(forward: str) -> list[float]:
    import transformers
    from tiny_models import BY_FORWARD, TinyConfig

    model = BY_FORWARD[forward](TinyConfig(VOCAB, HIDDEN))
    weights = [model.table.weight, model.head.weight]
    for weight, first in zip(weights, first_weights(), strict=True):
        weight.data.copy_(first)
    losses = [held_out_loss(*(w.detach() for w in weights))]

    class Measures(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % EVERY == 0:
                losses.append(held_out_loss(*(w.detach() for w in weights)))

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    optimizer = torch.optim.SGD(weights, lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=1, gradient_accumulation_steps=ROWS_A_STEP, max_steps=STEPS, max_grad_norm=0.0,
            use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, remove_unused_columns=False,
            dataloader_pin_memory=False)  # fmt: skip
        InOrder(
            model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in TRAINED_ON], callbacks=[Measures()],
            data_collator=lambda batch: {name: torch.stack([row[name] for row in batch]) for name in batch[0]},
            optimizers=(optimizer, schedule)).train()  # fmt: skip
    return losses


def run(variant: str) -> dict[str, Any]:
    import transformers

    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    right = by_plain_torch()
    return {"versions": versions, "every": EVERY, "runs": {f: {variant: by_trainer(f), "right": right} for f in FORWARDS}}


def joined(documents: list[dict[str, Any]]) -> dict[str, Any]:
    whole = documents[0]
    for document in documents[1:]:
        if document["versions"] != whole["versions"]:
            raise SystemExit(f"{document['versions']} is not {whole['versions']}")
        for forward, variants in document["runs"].items():
            whole["runs"][forward].update(variants)
    return whole


def drawing_of(document: dict[str, Any]) -> str:
    from curves import Panel, drawing

    panels = []
    for forward, variants in document["runs"].items():
        lines = [(COLOURS[v], v, [(float(i * EVERY), y) for i, y in enumerate(variants[v])]) for v in COLOURS if v in variants]
        ticks = [(float(x), str(x)) for x in range(0, STEPS + 1, 50)], [(y / 2, f"{y / 2:.1f}") for y in range(3, 7)]
        panels.append(Panel(FORWARDS[forward], (0, STEPS), (1.4, 3.2), *ticks, lines, ("optimizer steps", "loss of a token, held out")))
    return drawing(panels, [(colour, name) for name, colour in COLOURS.items()])


def main(words: list[str]) -> int:
    match words:
        case ["run", variant, out]:
            Path(out).write_text(json.dumps(run(variant), sort_keys=True) + "\n")
        case ["join", out, svg, *files] if files:
            document = joined([json.loads(Path(f).read_text()) for f in files])
            Path(out).write_text(json.dumps(document, sort_keys=True) + "\n")
            Path(svg).write_text(drawing_of(document))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

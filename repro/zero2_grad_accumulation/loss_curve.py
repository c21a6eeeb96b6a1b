"""The loss of a small net over 200 steps of ZeRO stage 2 with 8 micro-batches a step on two ranks, and of torch in float64.

  loss_curve.py NAME... --out FILE.json    NAME: raw, mitigated, patched

`deepspeed` is what PYTHONPATH gives; `mitigated` enables the mitigation, `patched` and `raw` say what the tree is. Rows that FILE has of
other names are kept. Data: a fixed net's outputs on normal inputs, with noise; each micro-batch has 2 rows. The loss is that of 512 rows
which are not trained on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import stand_in
import torch
import torch.multiprocessing
from rank_processes import become, free_port

stand_in.install()
import deepspeed  # noqa: E402

RANKS = 2
MICRO_BATCHES, ROWS, STEPS, EVERY, RATE = 8, 2, 200, 10, 0.1


def net(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))


def rows(seed: int, *sizes: int) -> tuple[torch.Tensor, torch.Tensor]:
    teacher = net(1)
    torch.manual_seed(seed)
    x = torch.randn(*sizes, 16)
    with torch.no_grad():
        return x, 3 * teacher(x) + 0.3 * torch.randn(*sizes, 4)


def held_out_loss(model: torch.nn.Module) -> float:
    x, y = rows(3, 512)
    with torch.no_grad():
        return float((model(x.to(next(model.parameters()).dtype)) - y).square().mean())


def train(rank: int, name: str, port: int, result: str) -> None:
    become(rank, RANKS, port)
    if name == "mitigated":
        from patchbench_mitigations import zero2_grad_accumulation

        zero2_grad_accumulation.enable()
    config = {
        "train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": MICRO_BATCHES, "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True, "steps_per_print": 10**9,
    }  # fmt: skip
    model = net(2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=RATE), config=config)
    losses = [held_out_loss(engine.module)]
    for step in range(STEPS):
        x, y = rows(100 + step, RANKS, MICRO_BATCHES, ROWS)
        for micro in range(MICRO_BATCHES):
            engine.backward((engine(x[rank, micro]) - y[rank, micro]).square().mean())
            engine.step()
        if (step + 1) % EVERY == 0:
            losses.append(held_out_loss(engine.module))
    if rank == 0:
        Path(result).write_text(json.dumps(losses))


def in_float64() -> list[float]:
    model = net(2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = [held_out_loss(model)]
    for step in range(STEPS):
        x, y = rows(100 + step, RANKS, MICRO_BATCHES, ROWS)
        optimizer.zero_grad()
        (model(x.double()) - y.double()).square().mean().backward()
        optimizer.step()
        if (step + 1) % EVERY == 0:
            losses.append(held_out_loss(model))
    return losses


def main(argv: list[str]) -> int:
    if "--out" not in argv or len(argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(argv[argv.index("--out") + 1])
    curves: dict[str, Any] = json.loads(out.read_text())["loss"] if out.exists() else {}
    for name in argv[: argv.index("--out")]:
        result = f"{out}.{name}"
        torch.multiprocessing.spawn(train, (name, free_port(), result), nprocs=RANKS)
        curves[name] = [round(loss, 6) for loss in json.loads(Path(result).read_text())]
        Path(result).unlink()
    curves["float64"] = [round(loss, 6) for loss in in_float64()]
    document = {
        "what": "held-out loss of a toy run, ZeRO stage 2, two gloo ranks on a CPU", "deepspeed": deepspeed.__version__.strip(),
        "torch": torch.__version__, "ranks": RANKS, "micro_batches": MICRO_BATCHES, "rows": ROWS, "rate": RATE,
        "steps": list(range(0, STEPS + 1, EVERY)), "loss": curves,
    }  # fmt: skip
    out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

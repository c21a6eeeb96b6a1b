"""ZeRO stage 2 with four micro-batches a step on two ranks of this machine: deepspeed's gradient compared with torch in float64.

Needs: deepspeed, torch and, for deepspeed's own collectives, a compiler and ninja. Exit: 0 right, 1 wrong, 2 cannot say.
"""

import multiprocessing
import os
import sys
from multiprocessing.connection import Connection

os.environ["DS_ACCELERATOR"] = "cpu"
import torch

try:
    import deepspeed
    from deepspeed.utils import safe_get_full_grad
except ImportError as error:
    print(f"cannot say: {error}; pip install deepspeed==0.18.2", file=sys.stderr)
    sys.exit(2)

RANKS, MICRO_BATCHES, ROWS = 2, 4, 2
PORT = str(20000 + os.getpid() % 20000)  # runs side by side meet on their own


def net() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    return torch.randn(RANKS, MICRO_BATCHES, ROWS, 8), torch.randn(RANKS, MICRO_BATCHES, ROWS, 4)


def train(rank: int, result: Connection) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=PORT)
    config = {
        "train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": MICRO_BATCHES, "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    model = net()
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config)
    x, y = batch()
    for micro in range(MICRO_BATCHES):
        engine.backward((engine(x[rank, micro]) - y[rank, micro]).square().mean())
        if micro + 1 == MICRO_BATCHES:
            grads = [safe_get_full_grad(one).clone() for one in engine.module.parameters()]
        engine.step()
    if rank == 0:
        result.send([one.tolist() for one in grads])


if __name__ == "__main__":
    ours, theirs = multiprocessing.Pipe(duplex=False)
    ranks = [multiprocessing.get_context("fork").Process(target=train, args=(rank, theirs)) for rank in range(RANKS)]
    for rank in ranks:
        rank.start()
    theirs.close()
    try:
        got = [torch.tensor(one, dtype=torch.float64) for one in ours.recv()]
    except EOFError:
        print("cannot say: a rank ended without an answer; is deepspeed==0.18.2 whole, and is there a compiler?", file=sys.stderr)
        sys.exit(2)
    right = net().double()
    x, y = batch()
    (right(x.double()) - y.double()).square().mean().backward()
    pairs = list(zip(got, (one.grad for one in right.parameters()), strict=True))
    error = (sum((a - b).square().sum() for a, b in pairs) / sum(b.square().sum() for _, b in pairs)).sqrt().item()
    print(f"the step's gradient, relative to float64: {error:.2e} off")
    print("WRONG: the step trains on its last micro-batch alone" if error > 1e-3 else "right")
    sys.exit(error > 1e-3)

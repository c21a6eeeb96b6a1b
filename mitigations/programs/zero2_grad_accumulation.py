"""Trains a small net with DeepSpeed's ZeRO stage 2, four micro-batches a step, and the same net in plain torch; each rank has its own rows.
The error is the largest relative difference of a trained weight. The stand-in leaves out the all-reduce that DeepSpeed would compile."""

import contextlib
import json
import os

RANKS = 2
alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
os.environ |= {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"} | ({} if "RANK" in os.environ else alone)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
import stand_in  # noqa: E402
import torch  # noqa: E402


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


MICRO, plain, model, loss_of = 4, net(), net(), torch.nn.functional.mse_loss
data, target = torch.randn(3, MICRO, 2 * size, 8), torch.randn(3, MICRO, 2 * size, 4)
config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": MICRO, "gradient_clipping": 0.0,
          "zero_allow_untested_optimizer": True, "steps_per_print": 10**9, "zero_optimization": {"stage": 2}}  # fmt: skip
with contextlib.redirect_stdout(None):
    stand_in.install()
    import deepspeed

    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.25), config=config)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.25)
    for x, y in zip(data, target, strict=True):
        for i in range(MICRO):
            engine.backward(loss_of(engine(x[i].chunk(size)[rank]), y[i].chunk(size)[rank]))
            engine.step()
        optimizer.zero_grad()
        loss_of(plain(x), y).backward()
        optimizer.step()
got, right = (torch.cat([p.detach().flatten() for p in one.parameters()]) for one in (engine.module, plain))
print(json.dumps({"error": ((got - right).abs().max() / right.abs().max()).item(), "bound": 1e-4}) if rank == 0 else "", flush=True)
os._exit(0)  # a thread of gloo's may want the interpreter while it ends, which aborts the process: seen once, in all of some 100 starts

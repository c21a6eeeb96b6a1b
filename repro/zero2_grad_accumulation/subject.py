"""Trains with the installed deepspeed on two ranks of one machine, and returns the gradient of the last step and the parameters."""

from __future__ import annotations

import contextlib
import datetime
import sys
from typing import Any

import stand_in
import torch
from subject_runtime import Case

stand_in.install()
with contextlib.redirect_stdout(sys.stderr):
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad

PACKAGE = "deepspeed"
RANKS = 2
RATE = 0.25  # model.h's
NAMES = ("w1", "b1", "w2", "b2")
PARAMETERS = ("0.weight", "0.bias", "2.weight", "2.bias")


def net_of(tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    hidden, features = tensors["w1"].shape
    net = torch.nn.Sequential(torch.nn.Linear(features, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, tensors["w2"].shape[0]))
    net.load_state_dict({key: tensors[name] for key, name in zip(PARAMETERS, NAMES, strict=True)})
    return net


def config_of(axes: dict[str, Any], num_rows: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": num_rows, "gradient_accumulation_steps": axes["micro_batches"],
        "bf16": {"enabled": axes["dtype"] == "bfloat16"}, "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True, "steps_per_print": 10**9,
        "zero_optimization": {
            "stage": axes["stage"], "reduce_bucket_size": axes["bucket"], "overlap_comm": axes["overlap_comm"],
            "contiguous_gradients": axes["contiguous_gradients"], "round_robin_gradients": axes["round_robin"],
        },
    }  # fmt: skip


def run(case: Case) -> dict[str, torch.Tensor]:
    """The gradients of the last step, as safe_get_full_grad gives them before the optimizer runs, and the parameters after it."""
    with contextlib.redirect_stdout(sys.stderr):
        if not torch.distributed.is_initialized():
            deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False, timeout=datetime.timedelta(seconds=60))
        return train(case)


def train(case: Case) -> dict[str, torch.Tensor]:
    """One rank's part of every step of a case."""
    axes, tensors = case.axes, case.tensors
    net = case.module(net_of(tensors))
    own = list(net.parameters())
    groups = [own] if axes["parameter_groups"] == 1 else [own[0::2], own[1::2]]
    optimizer = torch.optim.SGD([{"params": group} for group in groups], lr=RATE / axes["loss_times"])
    x, y = tensors["x"][case.rank], tensors["y"][case.rank]
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config_of(axes, x.shape[2]))
    for step in range(axes["steps"]):
        for micro in range(axes["micro_batches"]):
            out = engine(x[step, micro])
            loss = (out.to(y.dtype) - y[step, micro]).square().mean() * axes["loss_times"]
            if micro == axes.get("silent"):
                loss = loss * 0
            engine.backward(loss)
            if micro + 1 == axes["micro_batches"]:
                grads = [safe_get_full_grad(one).to(torch.float32).clone() for one in engine.module.parameters()]
            engine.step()
    after = [safe_get_full_fp32_param(one).clone() for one in engine.module.parameters()]
    engine.destroy()
    outputs = {f"grad_{name}": grad for name, grad in zip(NAMES, grads, strict=True)}
    if axes["dtype"] == "float32":
        outputs |= {f"after_{name}": one for name, one in zip(NAMES, after, strict=True)}
    return outputs

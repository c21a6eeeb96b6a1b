"""Wraps a module with the installed megatron-core's Float16Module, and trains its dt_bias."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from megatron.core.transformer import module as release
from megatron.core.transformer.transformer_config import TransformerConfig
from subject_runtime import Case

PACKAGE = "megatron.core"
PARAMETERS = ("dt_bias", "A_log", "D", "weight")
BUFFERS = ("running", "counts")


class Mixer(torch.nn.Module):
    """Parameters and buffers as a Mamba mixer has them, in float32; `marked` names those that are marked to stay so."""

    def __init__(self, tensors: dict[str, torch.Tensor], marked: list[str]):
        super().__init__()
        for name in PARAMETERS:
            setattr(self, name, torch.nn.Parameter(tensors[name].clone()))
        for name in BUFFERS:
            self.register_buffer(name, tensors[name].clone())
        for name in marked:
            mark(getattr(self, name))


def mark(tensor: torch.Tensor) -> None:
    """By the release's own function where it has one; what that sets is the attribute."""
    if hasattr(release, "mark_keep_in_fp32"):
        release.mark_keep_in_fp32(tensor)
    else:
        tensor.keep_in_fp32 = True


def wrap(case: Case) -> Mixer:
    """The mixer, `depth` - 1 modules below the one that Float16Module is given, after the cast."""
    marked = case.axes["marked"]
    mixer = Mixer(case.tensors, [] if marked in ("none", "by_comment") else marked.split("+"))
    module = mixer
    for _ in range(case.axes["depth"] - 1):
        module = torch.nn.Sequential(module)
    is_bf16 = case.axes["dtype"] == "bfloat16"
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, bf16=is_bf16, fp16=not is_bf16)
    release.Float16Module(config, module)
    return mixer


def train(parameter: torch.nn.Parameter, update: torch.Tensor, steps: int, has_main_params: bool) -> None:
    """`steps` steps of SGD, each of which adds `update`. With main parameters a 16-bit parameter has a float32 copy that is updated and
    rounded into it after each step, as Float16OptimizerWithFloat16Params does; that class takes CUDA tensors alone."""
    has_copy = has_main_params and parameter.dtype != torch.float32
    trained = torch.nn.Parameter(parameter.detach().clone().float()) if has_copy else parameter
    optimizer = torch.optim.SGD([trained], lr=1.0)
    trained.grad = -update.to(trained.dtype)
    for _ in range(steps):
        optimizer.step()
        if has_copy:
            parameter.data.copy_(trained.data)


def run(case: Case) -> dict[str, torch.Tensor]:
    """The mixer's tensors as the cast and the steps leave them, and softplus(dt + dt_bias) in float32."""
    mixer = wrap(case)
    if case.axes["update"] != "none":
        train(mixer.dt_bias, case.tensors["update"], case.axes["steps"], case.axes["update"] == "main_params")
    values = {name: getattr(mixer, name).detach() for name in (*PARAMETERS, *BUFFERS)}
    values["counts"] = values["counts"].float()  # as the judge wants them: a cast before this is seen in their values
    return values | {"delta": F.softplus(case.tensors["dt"] + values["dt_bias"].float())}

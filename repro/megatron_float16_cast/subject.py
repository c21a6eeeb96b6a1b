"""Wraps a real mixer, or a module of our own, with the installed megatron-core's Float16Module, and trains the latter's dt_bias."""

from __future__ import annotations

import stand_in
import torch
import torch.nn.functional as F
from absent import optional_module
from megatron.core.transformer import module as release
from megatron.core.transformer.transformer_config import TransformerConfig
from subject_runtime import Case, Unsupported

PACKAGE = "megatron.core"
PARAMETERS = ("dt_bias", "A_log", "D", "weight")
BUFFERS = ("running", "counts")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

stand_in.install()


def mark(tensor: torch.Tensor) -> None:
    """By the release's own function where it has one; what that sets is the attribute."""
    if hasattr(release, "mark_keep_in_fp32"):
        release.mark_keep_in_fp32(tensor)
    else:
        tensor.keep_in_fp32 = True


class Ours(torch.nn.Module):
    """Parameters and buffers in float32, named as a Mamba mixer's: none of them stays so by its name."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        super().__init__()
        for name in PARAMETERS:
            setattr(self, name, torch.nn.Parameter(tensors[name].clone()))
            if f"{name}.grad" in tensors:
                getattr(self, name).grad = tensors[f"{name}.grad"].clone()
        for name in BUFFERS:
            self.register_buffer(name, tensors[name].clone())


def config_of(case: Case, hidden: int = 8) -> TransformerConfig:
    is_bf16 = case.axes["dtype"] == "bfloat16"
    words = {"num_layers": 1, "hidden_size": hidden, "num_attention_heads": 1, "bf16": is_bf16, "fp16": not is_bf16}
    if "module" in case.axes:
        is_model = case.axes["params_dtype"] == "of_the_model"
        words |= {"mamba_state_dim": case.axes["state_dim"], "mamba_head_dim": case.axes["head_dim"], "mamba_num_groups": 1,
                  "params_dtype": DTYPES[case.axes["dtype"]] if is_model else torch.float32}  # fmt: skip
    return TransformerConfig(**words)


def megatron_mixer(case: Case, hidden: int) -> torch.nn.Module:
    from megatron.core.ssm import mamba_mixer

    class Derived(mamba_mixer.MambaMixer):
        pass

    kind = mamba_mixer.MambaMixer if case.axes["module"] == "MambaMixer" else Derived
    parts = mamba_mixer.MambaMixerSubmodules(in_proj=stand_in.Linear, out_proj=stand_in.Linear)
    groups = stand_in.SimpleNamespace(tp=stand_in.ONE_RANK, cp=stand_in.ONE_RANK)
    with stand_in.place(mamba_mixer, case.device):
        return kind(config_of(case, hidden), parts, hidden, layer_number=1, pg_collection=groups)


def mamba3_mixer(case: Case, hidden: int) -> torch.nn.Module:
    mamba3 = optional_module("mamba_ssm.modules.mamba3")
    if mamba3 is None:
        raise Unsupported("this release of mamba-ssm has no Mamba-3 layer")
    axes, is_mimo = case.axes, case.axes["module"] == "Mamba3_MIMO"
    mamba3.mamba3_mimo_combined = mamba3.mamba3_mimo_combined or object()  # a constructor asks only whether it is there
    return mamba3.Mamba3(
        hidden, d_state=axes["state_dim"], headdim=axes["head_dim"], is_mimo=is_mimo, mimo_rank=axes.get("num_ranks", 1),
        device=case.device, dtype=config_of(case).params_dtype,
    )  # fmt: skip


def parts_of(mixer: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The mixer's tensors that the case is about, by the judge's names."""
    norm = mixer.B_norm if hasattr(mixer, "B_norm") else mixer.norm
    own = {name: mixer._parameters[name] for name in mixer._parameters if not name.startswith("conv1d")}
    return own | {"weight": mixer.out_proj.weight, "norm": norm.weight, "running": mixer.running, "counts": mixer.counts}


def mixers_of(case: Case) -> list[torch.nn.Module]:
    """A mixer for each layer, with the case's values in it and two buffers more."""
    axes, made = case.axes, []
    build = mamba3_mixer if axes["module"].startswith("Mamba3") else megatron_mixer
    for layer in range(axes["layers"]):
        mixer = build(case, axes["heads"] * axes["head_dim"] // 2)
        mixer.register_buffer("running", case.tensors["running"][layer].clone())
        mixer.register_buffer("counts", case.tensors["counts"][layer].clone())
        for name, tensor in parts_of(mixer).items():
            with torch.no_grad():
                tensor.copy_(case.tensors[name][layer])
            if f"{name}.grad" in case.tensors:
                tensor.grad = case.tensors[f"{name}.grad"][layer].to(tensor.dtype)
        made.append(mixer.requires_grad_(not axes["frozen"]))
    return made


def tied_to(mixers: list[torch.nn.Module]) -> torch.nn.Module:
    """A module that holds the mixers' own parameters a second time, under other names."""
    holder = torch.nn.Module()
    for layer, mixer in enumerate(mixers):
        for name, parameter in mixer.named_parameters(recurse=False):
            holder.register_parameter(f"tied_{layer}_{name}", parameter)
    return holder


def wrap(case: Case, module: torch.nn.Module) -> None:
    """Float16Module is given the module `depth` - 1 levels above; as often as the case says."""
    for _ in range(case.axes["depth"] - 1):
        module = torch.nn.Sequential(module)
    for _ in range(case.axes.get("wraps", 1)):
        release.Float16Module(config_of(case), module)


def marked_names(case: Case) -> list[str]:
    return [] if case.axes["marked"] == "none" else case.axes["marked"].split("+")


def kept_object(old: torch.Tensor, new: torch.Tensor) -> int:
    """2 for a parameter that is the very object of before, 1 more for one that requires a gradient."""
    return 2 * (new is old) + new.requires_grad if isinstance(new, torch.nn.Parameter) else 0


def run_mixers(case: Case) -> dict[str, torch.Tensor]:
    """Each tensor and gradient of the mixers after the cast, layer by layer, and what became of them as objects."""
    mixers = list(case.module(torch.nn.ModuleList(mixers_of(case))))
    before = [parts_of(mixer) for mixer in mixers]
    for parts in before:
        for name in marked_names(case):
            mark(parts[name])
    model = list(mixers)
    if case.axes["tied"] != "none":
        model.insert(0 if case.axes["tied"] == "before" else len(model), tied_to(mixers))
    wrap(case, torch.nn.Sequential(*model))
    after, made = [parts_of(mixer) for mixer in mixers], {}
    for name in sorted(after[0]):
        made[name] = torch.stack([parts[name].detach() for parts in after])
        if f"{name}.grad" in case.tensors:
            made[f"{name}.grad"] = torch.stack([parts[name].grad for parts in after])
    made["counts"] = made["counts"].float()  # as the judge wants them: a cast before this is seen in their values
    rows = [
        [4.0 * (i + 1) + kept_object(old[name], new[name]) for i, name in enumerate(sorted(new))]
        for old, new in zip(before, after, strict=True)
    ]
    return made | {"objects": torch.tensor(rows)}


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


def run_ours(case: Case) -> dict[str, torch.Tensor]:
    """The module's tensors as the cast and the steps leave them, and softplus(dt + dt_bias) in float32."""
    module = case.module(Ours(case.tensors))
    for name in marked_names(case):
        mark(getattr(module, name))
    wrap(case, module)
    values = {f"{name}.grad": getattr(module, name).grad for name in PARAMETERS if f"{name}.grad" in case.tensors}
    if case.axes["update"] != "none":
        train(module.dt_bias, case.tensors["update"], case.axes["steps"], case.axes["update"] == "main_params")
    values |= {name: getattr(module, name).detach() for name in (*PARAMETERS, *BUFFERS)}
    values["counts"] = values["counts"].float()
    return values | {"delta": F.softplus(case.tensors["dt"] + values["dt_bias"].float())}


def run(case: Case) -> dict[str, torch.Tensor]:
    return run_mixers(case) if "module" in case.axes else run_ours(case)

# Longer than 400 lines: one stand-in and one call for each mitigation, and the scenarios that all share.
"""One mitigation on its stand-in upstream, with code of the user's around it: `users_programs.py SLUG FOLDER` prints what came of each
scenario as JSON, "" where all is well. Its process starts with two threads, of which torch has not used the second when it is switched on.
"""

from __future__ import annotations

import functools
import importlib
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parents[2] / "mitigations"), str(Path(__file__).parent)]

from evidence import install_stand_in  # noqa: E402
from patchbench_mitigations import callees, fingerprint, registry  # noqa: E402
from patchbench_mitigations.after_import import Refused  # noqa: E402
from patchbench_mitigations.switch import one_thread  # noqa: E402

Made = Callable[[torch.Tensor], torch.Tensor]  # how an input comes to be
FUSED_CE = """
import torch
import torch.nn.functional as F

def cross_entropy_forward(logits, target):
    with torch.enable_grad():
        leaf = logits.detach().clone().requires_grad_()
        return F.cross_entropy(leaf.flatten(0, 1), target.clone().reshape(-1), reduction="none").view(target.shape), leaf

class CrossEntropyFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _input, target, label_smoothing=0.0, reduce_loss=False, dist_process_group=None, ignore_idx=-100):
        loss, leaf = cross_entropy_forward(_input, target)
        with torch.enable_grad():
            ctx.graph = (loss.mean() if reduce_loss else loss, leaf)
        return ctx.graph[0].detach()

    @staticmethod
    def backward(ctx, grad_output):
        first = grad_output.flatten()[0].expand(grad_output.shape)
        return torch.autograd.grad(*ctx.graph, first, retain_graph=True)[0], None, None, None, None, None
"""
KERNELS = """
from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa

def _resolve_fused_hook(name, config):
    return tilelang_dsa.fused_sparse_mla_absorbed

def run_fused_absorbed_sparse_attention(config, query, key, topk_indices, softmax_scale, v_channels, topk_length=None):
    absorbed = _resolve_fused_hook("absorbed", config)
    return absorbed(query, key, topk_indices, softmax_scale, v_channels)
"""
SPARSE_MLA = """
import torch
from megatron.core.transformer.experimental_attention_variant.ops.tilelang_sparse_mla_bwd import sparse_mla_bwd

def sparse_mla_fwd_interface(q, kv, indices, sm_scale=None):
    return q[..., :512].contiguous(), torch.zeros(q.shape[:3])

def sparse_mla_delta(o, do):
    return (o.float() * do.float()).sum(-1)

class SparseMLA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, kv, indices, scaling):
        ctx.save_for_backward(q, kv, indices, torch.ones(q.shape[:3], dtype=torch.bool))
        ctx.scaling = scaling
        return sparse_mla_fwd_interface(q, kv, indices, sm_scale=scaling)

    @staticmethod
    def backward(ctx, grad_out, grad_lse):
        q, kv, indices, is_valid = ctx.saved_tensors
        out, lse = sparse_mla_fwd_interface(q, kv, indices, sm_scale=ctx.scaling)
        delta = sparse_mla_delta(out, grad_out)
        return (*sparse_mla_bwd(q, kv, out, grad_out, indices, lse, sm_scale=ctx.scaling, delta=delta), None, None)
"""
SPARSE_MLA_BWD = """
import torch

def preprocess(o, do):
    return (o.float() * do.float()).sum(-1)

def sparse_mla_bwd(q, kv, o, do, indices, lse, sm_scale=None, delta=None):
    delta = preprocess(o, do) if delta is None else delta
    return q * delta.unsqueeze(-1).to(q.dtype), torch.zeros_like(kv)
"""
VARIANT = "megatron/core/transformer/experimental_attention_variant"


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def of_test(name: str) -> ModuleType:
    with one_thread():  # some compute when they are imported
        return importlib.import_module(f"mitigation_{name}_test")


def megatron(folder: Path, files: dict[str, str]) -> None:
    core = {"megatron/core/__init__.py": '__version__ = "0.19.2"\n'}
    install_stand_in(folder, "megatron-core", "0.19.2", {f"{VARIANT}/{name}": text for name, text in files.items()} | core)
    (folder / "megatron/core/__init__.py").write_text(core["megatron/core/__init__.py"])


# ---- what each is called with: a function of how inputs are made, of which the results come ----


def linear_cross_entropy(folder: Path, reduction: str) -> Callable[[Made], list[Any]]:
    text = of_test("liger_flce_frozen_hidden").UPSTREAM.replace("{kind}", "faulty")
    install_stand_in(folder, "liger-kernel", "0.8.0", {"liger_kernel/ops/fused_linear_cross_entropy.py": text})

    def call(made: Made) -> list[Any]:
        module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
        hidden, weight, target = made(normal(5, 8)), normal(16, 8).requires_grad_(), made(torch.arange(5))
        if reduction == "none" and not hidden.is_inference():
            hidden.requires_grad_()
        loss = module.LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, target, None, None, reduction)
        factor = torch.linspace(0, 1, 5) if reduction == "none" else torch.ones(())
        (grad,) = torch.autograd.grad(loss, weight, factor, allow_unused=True)
        return [loss.detach(), grad]

    return call


def liger_flce_none_bwd(folder: Path) -> Callable[[Made], list[Any]]:
    return linear_cross_entropy(folder, "none")


def liger_flce_frozen_hidden(folder: Path) -> Callable[[Made], list[Any]]:
    return linear_cross_entropy(folder, "mean")


def te_fused_ce(folder: Path) -> Callable[[Made], list[Any]]:
    install_stand_in(folder, "transformer-engine", "2.17.1", {"transformer_engine/pytorch/cross_entropy.py": FUSED_CE})

    def call(made: Made) -> list[Any]:
        module = importlib.import_module("transformer_engine.pytorch.cross_entropy")
        logits, labels = normal(2, 3, 8).requires_grad_(), made(torch.tensor([[1, 5, 2], [7, 0, 3]]))
        loss = module.CrossEntropyFunction.apply(logits, labels, 0.0, False, None)
        return [loss.detach(), torch.autograd.grad(loss, logits, torch.linspace(0, 1, 6).view(2, 3))[0]]

    return call


def zero2_grad_accumulation(folder: Path) -> Callable[[Made], list[Any]]:
    test = of_test("zero2_grad_accumulation")
    upstream = test.Upstream(folder, "averaged_gradients", "0.18.2")
    return lambda made: test.steps_of(upstream.optimizer(), 1, 3)[0]


def trainer_grad_accumulation(folder: Path) -> Callable[[Made], list[Any]]:
    test = of_test("trainer_grad_accumulation")
    upstream = test.Upstream(folder, test.TRAINER)
    test.fix.observed = lambda: {"release": test.WRONG, "mitigated": test.RIGHT}

    def call(made: Made) -> list[Any]:
        model = test.OwnForCausalLM()
        rows = [{"input_ids": row["input_ids"], "labels": made(row["labels"])} for row in test.rows_of(9, 2, 4)]
        upstream.trainer(model).step([{name: value.clone() for name, value in row.items()} for row in rows])
        return [model.table.grad]

    return call


def dsa_graph_capture(folder: Path) -> Callable[[Made], list[Any]]:
    upstream = of_test("dsa_graph_capture").Upstream(folder, "faulty", "0.19.2")

    def call(made: Made) -> list[Any]:
        mask = torch.full((1, 4, 8), float("-inf"))
        upstream.module("dsa_masking").scatter_topk_into_index_mask(mask, made(torch.tensor([[[0, 1], [1, 2], [2, 3], [3, 4]]])))
        positions = upstream.module("dsa_layout").build_packed_allgather_cp_local_positions
        return [mask, positions(made(torch.tensor([0, 8, 16])), 2, 1, torch.device("cpu"), 8)]

    return call


def fp8_storage_dispatch(folder: Path) -> Callable[[Made], list[Any]]:
    test = of_test("fp8_storage_dispatch")
    upstream = test.Upstream(folder, "fooled", "0.19.2")

    def call(made: Made) -> list[Any]:
        query, key, indices = test.problem("kernels")
        dense = [made(t.dequantize()) for t in (query, key)]
        return [upstream.call("kernels", *pair, made(indices)) for pair in (dense, (query, key))]

    return call


def mamba3_mimo_gqa_bwd(folder: Path) -> Callable[[Made], list[Any]]:
    test = of_test("mamba3_mimo_gqa_bwd")
    test.Upstream(folder, "faulty", "2.3.2.post1")

    def call(made: Made) -> list[Any]:
        groups = 2 if test.fix.status()["on"] else 6  # the release refuses 2
        given = {n: made(t) for n, t in test.tensors(groups, torch.bfloat16).items()}
        host = importlib.import_module(test.fix.TARGET).mamba_mimo_bwd_combined
        found = host(*[given.get(name) for name in test.fix.TAKES.partition("{")[0].split()])
        return [found[place] for place in test.fix.PLACES]

    return call


def mamba3_siso_bwd_cse(folder: Path) -> Callable[[Made], list[Any]]:
    test = of_test("mamba3_siso_bwd_cse")
    parts = {"mamba3_siso_fwd": test.FORWARD, "mamba3_siso_combined": test.OP}
    for name, value in {"place": test.fix.PLACED, "room": "width", "more": ""}.items():
        parts = {file: text.replace("{" + name + "}", value) for file, text in parts.items()}
    at = test.fix.PARTS.replace(".", "/")
    install_stand_in(folder, "mamba-ssm", "2.3.2.post1", {f"{at}{file}.py": text for file, text in parts.items()})

    def call(made: Made) -> list[Any]:
        out = test.home().mamba3_siso_combined(*(made(t.detach()) for t in test.arguments()), cu_seqlens=test.BOUNDS)
        return [out]

    return call


def sparse_mla_dims(folder: Path) -> Callable[[Made], list[Any]]:
    tilelang = of_test("fp8_storage_dispatch").TILELANG.replace("{kind}", "fooled")
    megatron(folder, {"dsa_kernels.py": KERNELS, "ops/tilelang_dsa.py": tilelang})

    def call(made: Made) -> list[Any]:
        kernels = importlib.import_module(f"{VARIANT.replace('/', '.')}.dsa_kernels")
        query, key = (made(normal(*shape, 192).to(torch.bfloat16)) for shape in ((4, 2, 16), (32, 2, 1)))
        return [kernels.run_fused_absorbed_sparse_attention(None, query, key, torch.zeros(2, 4, 64).int(), 0.1, 128)]

    return call


def sparse_mla_pdp_precision(folder: Path) -> Callable[[Made], list[Any]]:
    megatron(folder, {"ops/sparse_mla.py": SPARSE_MLA, "ops/tilelang_sparse_mla_bwd.py": SPARSE_MLA_BWD})

    def call(made: Made) -> list[Any]:
        module = importlib.import_module(f"{VARIANT.replace('/', '.')}.ops.sparse_mla")
        query, key = (normal(*shape, 576).to(torch.bfloat16).requires_grad_() for shape in ((1, 8, 16), (1, 64, 1)))
        out, _ = module.SparseMLA.apply(query, key, torch.zeros(1, 8, 1, 32).int(), 0.02)
        return list(torch.autograd.grad(out.float().sum(), (query, key)))

    return call


def megatron_float16_cast(folder: Path) -> Callable[[Made], list[Any]]:
    test = of_test("megatron_float16_cast")
    upstream = test.Upstream(folder, "faulty", "0.19.2")

    def call(made: Made) -> list[Any]:
        torch.manual_seed(16)
        return [p.detach().clone() for p in upstream.wrap(test.mixer()).parameters()]

    return call


MODES = {"fp8_storage_dispatch": "dequantize", "liger_flce_none_bwd": "plain", "te_fused_ce": "plain", "mamba3_mimo_gqa_bwd": "plain"}


# ---- scenarios ----


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def in_inference_mode(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()


def equal(one: list[Any], other: list[Any]) -> bool:
    return all(a is b or torch.equal(a, b) for a, b in zip(one, other, strict=True))


class Program:
    """One slug's mitigation, switched on and called."""

    def __init__(self, slug: str, folder: Path):
        self.fix, self.mode = registry.module_of(slug), MODES.get(slug, "auto")
        self.call: Callable[[Made], list[Any]] = globals()[slug](folder)

    def enable(self) -> None:
        assert self.fix.enable(self.mode)["on"]

    def forked(self) -> str:
        """A child that computes with all threads, forked after switching on."""
        self.enable()
        child = os.fork()
        if child == 0:
            torch.randn(600, 600).exp().sum().item()
            self.call(as_it_is)
            os._exit(0)
        for _ in range(300):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return "" if status == 0 else f"the child ended with {status}"
            time.sleep(0.1)
        os.kill(child, 9)
        os.waitpid(child, 0)
        return "the child hangs"

    def inference_mode(self) -> str:
        """Inputs that were made in inference mode, where the release takes them."""
        try:
            self.call(in_inference_mode)
        except RuntimeError:
            return ""  # nor does the release
        self.enable()
        return "" if equal(self.call(in_inference_mode), self.call(as_it_is)) else "other results than of ordinary tensors"

    def _inner(self) -> tuple[dict[str, Any], str, Any] | None:
        """A function of the user's release that a replaced one calls, and that runs without the mitigation."""
        self.enable()
        found = [one for one in self.fix._own.hook.callees.found if one[1] in callees._defined_in(one[0])]
        self.fix.disable()
        for names, name, held in found:
            calls: Counter[str] = Counter()
            names[name] = counting(held, calls)
            self.call(as_it_is)
            names[name] = held
            if calls:
                return names, name, held
        return None

    def inner_replaced_before(self) -> str:
        if (inner := self._inner()) is None:
            return ""
        calls: Counter[str] = Counter()
        names, name, held = inner
        names[name] = counting(held, calls)
        try:
            self.enable()
        except Refused as refused:
            return "" if name in str(refused) else f"refuses without a word of {name}: {refused}"
        finally:
            if not self.fix.status()["on"]:
                names[name] = held
        calls.clear()
        self.call(as_it_is)
        names[name] = held
        return "" if calls else f"{name} is passed over"

    def inner_replaced_after(self) -> str:
        if (inner := self._inner()) is None:
            return ""
        calls, said = Counter(), Said()
        names, name, held = inner
        self.enable()
        registry.LOG.addHandler(said)
        names[name] = counting(held, calls)
        self.call(as_it_is)
        self.call(as_it_is)
        names[name] = held
        registry.LOG.removeHandler(said)
        lines = [line for line in said.lines if name in line]
        is_acting = any(self.fix.status()["counts"].values())
        if not calls:
            return f"{name} is passed over"
        return "" if len(lines) == (0 if is_acting else 1) else f"says {said.lines}"

    def wrapped_since(self) -> str:
        """The replaced functions under wrappers of the user's, and a note of the user's on what holds them."""
        self.enable()
        calls: Counter[str] = Counter()
        placements = list(self.fix._own.hook.placements)
        wrappers = []
        for placement in placements:
            placement.holder.note_of_the_user = self
            held = getattr(placement.holder, placement.name)
            is_static = isinstance(placement.placed, staticmethod)
            wrapper = staticmethod(counting(held, calls)) if is_static else counting(held, calls)
            wrappers.append(wrapper)
            setattr(placement.holder, placement.name, wrapper)
        self.call(as_it_is)
        kept = [vars(p.holder)[p.name] is w and p.holder.note_of_the_user is self for p, w in zip(placements, wrappers, strict=True)]
        try:
            self.fix.disable()
            refused = False
        except Refused:
            refused = True
        for placement in placements:
            setattr(placement.holder, placement.name, placement.placed)
        if not refused:
            return "is switched off over the user's wrapper"
        return "" if all(kept) and calls else "the user's wrapper is gone or does not run"


def counting(function: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    @functools.wraps(function)
    def of_the_user(*args: Any, **words: Any) -> Any:
        calls["all"] += 1
        return function(*args, **words)

    return of_the_user


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


SCENARIOS = ("forked", "inference_mode", "inner_replaced_before", "inner_replaced_after", "wrapped_since")


def main(slug: str, folder: Path) -> None:
    fingerprint.measured_as = lambda slug, version, keys: (version, "")
    os.environ["TRITON_INTERPRET"] = "1"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr(torch.cuda, "is_available", lambda: False)
        program = Program(slug, folder)
        for name in SCENARIOS:
            try:
                came_of_it = getattr(program, name)()
            except Exception as error:
                came_of_it = f"{type(error).__name__}: {error}"
            try:
                program.fix.disable()
            except Refused as refused:
                came_of_it = came_of_it or str(refused)
            print(json.dumps({name: came_of_it}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

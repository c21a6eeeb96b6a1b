"""Calls the real Mamba-3 SISO backward of the installed mamba-ssm, or compiles its dQ/dK/dV kernel for a GPU that is not there.

Sites: "backward" returns the gradients of given states, "whole" those of the release's public op, whose forward stores the states itself,
"source" and "dots" count products in the kernel's IR, "code" returns its PTX.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest import mock

import stand_in
import torch
from subject_runtime import Case, Unsupported

PACKAGE = "mamba_ssm"
# The host function's result in its order.
GRADIENTS = ("q", "k", "v", "adt", "qk_dot", "d", "state")
# The call that a compiled kernel is specialised for, in chunks and heads.
NUM_CHUNKS, NUM_HEADS = 4, 8

COMMENT = re.compile(r"[ \t]*//.*")
DOT = re.compile(r"(%\w+) = tt\.dot .*: tensor<(\d+)x(\d+)x\w+> \* tensor<(\d+)x(\d+)x\w+> ->")
MULTIPLY = re.compile(r"= arith\.mulf (%\w+), (%\w+) :")
SERVE = "import pathlib, sys, subject_runtime as r; r.load_subject(pathlib.Path(sys.argv[1])).serve()"

stand_in.install()


def release() -> types.ModuleType:
    """The module under test; looked up per call, so that a mitigation's replacement is seen."""
    found = stand_in.module()
    if found is None:
        raise Unsupported("this release has no SISO backward")
    return found


def chunk_slots(case: Case) -> tuple[list[tuple[int, slice]], int]:
    """Each chunk's slot and tokens, and how many slots there are; packed, sequence i begins at slot i + start // chunk."""
    chunk, seqlen, seqlens = case.axes["chunk"], case.tensors["q"].shape[1], case.axes.get("seqlens")
    bounds = list(itertools.accumulate(seqlens or [seqlen], initial=0))
    placed = [
        (sequence_idx + start // chunk + number, slice(begin, min(begin + chunk, stop)))
        for sequence_idx, (start, stop) in enumerate(itertools.pairwise(bounds))
        for number, begin in enumerate(range(start, stop, chunk))
    ]
    return placed, len(seqlens) + seqlen // chunk if seqlens else len(placed)


def decay_sums(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """adt * log2(e), summed to each token of its chunk, that one included, [b, h, s], and over each chunk, [b, h, slot]."""
    adt, (placed, num_slots) = case.tensors["adt"], chunk_slots(case)
    sums, totals = torch.empty_like(adt), adt.new_zeros((*adt.shape[:2], num_slots))
    for slot, tokens in placed:
        sums[..., tokens] = (adt[..., tokens] * math.log2(math.e)).cumsum(-1)
        totals[..., slot] = sums[..., tokens.stop - 1]
    return sums, totals


def arranged_states(case: Case) -> torch.Tensor:
    """[b, h, chunk, d_v, d] -> [b, h, d_v, slot * d]; unused slots 0."""
    states, (placed, num_slots) = case.tensors["states"], chunk_slots(case)
    batch, num_heads, _, head_dim_v, head_dim_qk = states.shape
    made = states.new_zeros((batch, num_heads, head_dim_v, num_slots, head_dim_qk))
    made[:, :, :, [slot for slot, _ in placed]] = states.permute(0, 1, 3, 2, 4)
    return made.flatten(3)


def bounds_of(case: Case) -> torch.Tensor | None:
    """Where the packed sequences of a case begin, and the end of the last; None where none are packed."""
    seqlens = case.axes.get("seqlens")
    packed = list(itertools.accumulate(seqlens or (), initial=0))
    return torch.tensor(packed, dtype=torch.int32, device=case.tensors["q"].device) if seqlens else None


def words_of(case: Case) -> dict[str, Any]:
    """The host function's arguments by name; what it takes from the forward is made from the case's tensors."""
    tensors, (sums, totals) = case.tensors, decay_sums(case)
    found = {
        "q": tensors["q"], "k": tensors["k"], "v": tensors["v"], "do": tensors["grad_out"], "da_cs": sums, "da_cs_sum": totals,
        "qk_dot": tensors["qk_dot"], "SSM_States": arranged_states(case), "Cu_Seqlens": bounds_of(case),
        "d_ossm_state": tensors.get("grad_final_state"), "D": tensors.get("d"),
    }  # fmt: skip
    marked = {name: stand_in.as_if_on_gpu(tensor) for name, tensor in found.items()}
    return {**marked, "chunk_size": case.axes["chunk"], "has_input_state": case.axes["has_state"]}


def note_launch(case: Case) -> None:
    """The configuration that the autotuner launched goes into the case's numbers."""
    launched = getattr(release(), stand_in.KERNEL).best_config
    case.numbers |= {name: float(getattr(launched, name)) for name in stand_in.LAUNCH}


def gradients(case: Case) -> dict[str, torch.Tensor]:
    """Every gradient that the case's inputs have, in fp32; the host function's own exceptions reach the caller. Of several backwards
    on the same tensors (axis `backwards`) the last one's."""
    words = words_of(case)
    for _ in range(case.axes.get("backwards", 1)):
        found = release().compute_dqkv(**words)
    note_launch(case)
    named = zip(GRADIENTS, found, strict=True)
    return {f"grad_{name}": grad.as_subclass(torch.Tensor).float() for name, grad in named if grad is not None}


def first_states(case: Case) -> torch.Tensor:
    """[n, h, d_v, d]: packed, the state before each sequence, else before each row of the batch."""
    states, seqlens = case.tensors["states"], case.axes.get("seqlens")
    if not seqlens:
        return states[:, :, 0]
    chunks = [-(-length // case.axes["chunk"]) for length in seqlens]
    return states[0, :, list(itertools.accumulate(chunks, initial=0))[:-1]].transpose(0, 1)


def whole_gradients(case: Case) -> dict[str, torch.Tensor]:
    """The gradients of the public op, and how many elements after its stored states were written. The scan is the case's: no rotation,
    no bias, dt 1, and a trap whose sigmoid is 1, so that q and k reach the scan as they are. The op forms qk_dot from them, which the
    case has as an input: its gradient is what the op's own backward has for it, and what q and k get through it is taken off."""
    module = stand_in.op()
    if module is None:
        raise Unsupported("this release has no SISO op")
    tensors, has_state = case.tensors, case.axes["has_state"]
    leaves = {name: tensors[name].detach() for name in ("q", "k", "v", "adt", "d") if name in tensors}
    if has_state:
        leaves["state"] = first_states(case).detach()
    leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
    q, k, v, adt, d, state = map(leaves.get, ("q", "k", "v", "adt", "d", "state"))
    ones, bias, angles = torch.ones_like(adt), q.new_zeros(q.shape[2:]), q.new_zeros((*q.shape[:3], 2))
    initial, by = None, [tensors["grad_out"]]
    if has_state:
        by.append(tensors["grad_final_state"])
        initial = (q.new_zeros((*state.shape[:2], 2)), state, q.new_zeros((*state.shape[:2], q.shape[3])), q.new_zeros(state.shape[:3]))
    of_scan = []

    def kept(**words: Any) -> Any:
        of_scan[:] = compute_dqkv(**words)
        return tuple(of_scan)

    compute_dqkv = module.compute_dqkv
    with stand_in.interpreted() as guarded, mock.patch.object(module, "compute_dqkv", kept):
        found = module.mamba3_siso_combined(
            q, k, v, adt, ones, 40 * ones, bias, bias, angles, d, None, initial, case.axes["chunk"], has_state, bounds_of(case)
        )
        results = [found[0], found[2]] if has_state else [found]
        for _ in range(case.axes.get("backwards", 1)):
            grads = torch.autograd.grad(results, list(leaves.values()), by, retain_graph=True)
    note_launch(case)
    counts = {"elements_past_states": torch.tensor(guarded.past_end(), dtype=torch.float64)}
    named = dict(zip(leaves, grads, strict=True)) | {"qk_dot": of_scan[GRADIENTS.index("qk_dot")]}
    own = named["qk_dot"].transpose(1, 2).unsqueeze(-1)
    named |= {"q": named["q"] - own * k.detach(), "k": named["k"] - own * q.detach()}
    return counts | {f"grad_{name}": grad for name, grad in named.items()}


class Launches:
    """Takes the kernel's place and keeps the last call instead of launching it."""

    def __getitem__(self, _: Any) -> Any:
        return self.keep

    def keep(self, *positional: Any, **named: Any) -> None:
        self.positional, self.named = positional, named


def recorded_call(axes: dict[str, Any]) -> dict[str, Any]:
    """What the host function hands the kernel for bf16 tensors of the case's sizes, by the kernel's argument names; no data. The
    case's `recompute_mask`, where it has one, takes the place of the release's own switch."""
    chunk, d, d_v = axes["chunk"], axes["head_dim_qk"], axes["head_dim_v"]
    seqlen, num_slots = NUM_CHUNKS * chunk, NUM_CHUNKS + int(axes["is_varlen"])

    def empty(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return stand_in.as_if_on_gpu(torch.empty(sizes, dtype=dtype, device="meta"))

    low = functools.partial(empty, dtype=torch.bfloat16)
    words = {
        "q": low(1, seqlen, NUM_HEADS, d), "k": low(1, seqlen, NUM_HEADS, d),
        "v": low(1, seqlen, NUM_HEADS, d_v), "do": low(1, seqlen, NUM_HEADS, d_v),
        "da_cs": empty(1, NUM_HEADS, seqlen), "da_cs_sum": empty(1, NUM_HEADS, num_slots),
        "qk_dot": empty(1, NUM_HEADS, seqlen),
        "SSM_States": low(1, NUM_HEADS, d_v, num_slots * d),
        "d_ossm_state": empty(1, NUM_HEADS, d_v, d) if axes["has_state"] else None,
        "D": empty(NUM_HEADS) if axes["has_d"] else None,
        "Cu_Seqlens": empty(2, dtype=torch.int32) if axes["is_varlen"] else None,
    }  # fmt: skip
    launches, module = Launches(), release()
    with mock.patch.object(module, stand_in.KERNEL, launches):
        module.compute_dqkv(**words, chunk_size=chunk, has_input_state=axes["has_state"])
    names = getattr(module, stand_in.KERNEL).fn.arg_names
    call = {**dict(zip(names, launches.positional, strict=False)), **launches.named}
    return call | ({"RECOMPUTE_MASK": axes["recompute_mask"]} if "recompute_mask" in axes else {})


def source_of(kernel: Any, call: dict[str, Any]) -> Any:
    """The kernel specialised as a launch would: None, 1 and compile-time values are constants, a multiple of 16 is known as one."""
    from triton.compiler import ASTSource
    from triton.runtime.jit import mangle_type

    def is_constant(value: Any) -> bool:
        return value is None or (isinstance(value, int) and value == 1)

    constants = {p.name: call[p.name] for p in kernel.params if p.is_constexpr or is_constant(call[p.name])}
    signature = {name: "constexpr" if name in constants else mangle_type(call[name]) for name in kernel.arg_names}
    attributes = {}
    for idx, name in enumerate(kernel.arg_names):
        # Every tensor of the call is an allocation of its own, and these begin at multiples of 16 bytes.
        if name not in constants and (isinstance(call[name], torch.Tensor) or call[name] % 16 == 0):
            attributes[(idx,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


class Compilation:
    """The kernel for a target, from its first IR through the compiler's stages; holds what the IR lives in."""

    def __init__(self, axes: dict[str, Any]) -> None:
        from triton._C.libtriton import ir
        from triton.backends.compiler import GPUTarget
        from triton.compiler import make_backend

        target = GPUTarget("cuda", axes["arch"], 32)
        backend = make_backend(target)
        options = backend.parse_options({"num_warps": axes["num_warps"], "num_stages": axes["num_stages"]})
        self.stages: dict[str, Any] = {}
        self.metadata = {"target": target, **vars(options)}
        self.context = ir.context()
        ir.load_dialects(self.context)
        backend.load_dialects(self.context)
        source = source_of(getattr(release(), stand_in.KERNEL).fn, recorded_call(axes))
        backend.add_stages(self.stages, options, source.language)
        functions = backend.get_codegen_implementation(options)
        self.product = source.make_ir(target, options, functions, backend.get_module_map(), self.context)

    def advance(self, *stages: str) -> Any:
        """The named stages in order; what the last one made."""
        for stage in stages:
            self.product = self.stages[stage](self.product, self.metadata)
        return self.product


def dots_of(ir_text: str) -> dict[str, tuple[int, ...]]:
    """The operands' sizes of each product in an IR, by the name of its result."""
    return {name: tuple(map(int, sizes)) for name, *sizes in DOT.findall(ir_text)}


def compiled(axes: dict[str, Any]) -> dict[str, Any]:
    """Site "code": the PTX text without its comments; the others: numbers of products; "source" tells them apart by
    their sizes (ValueError unless d, d_v and chunk differ).
    """
    compilation, chunk, d_v = Compilation(axes), axes["chunk"], axes["head_dim_v"]
    if axes["site"] == "code":
        return {"ptx": COMMENT.sub("", compilation.advance("ttir", "ttgir", "llir", "ptx"))}
    ir_text = str(compilation.product)
    dots = dots_of(ir_text)
    if axes["site"] == "dots":
        return {"dots": len(dots), "dots_after_cse": len(dots_of(str(compilation.advance("ttir"))))}
    if len({axes["head_dim_qk"], d_v, chunk}) < 3:
        raise ValueError("head_dim_qk, head_dim_v and chunk must differ")
    products = {name for name, sizes in dots.items() if sizes == (chunk, d_v, d_v, chunk)}
    # A mask is the elementwise factor of a product: the decay between two tokens, 0 where the later one comes first.
    masks = sum(len(products & set(factors)) for factors in MULTIPLY.findall(ir_text))
    return {"value_products": len(products), "value_masks": masks}


def serve() -> None:
    """Answers one line of JSON on stdin, a case's axes, by one on stdout, until stdin ends."""
    for line in sys.stdin:
        try:
            answer = compiled(json.loads(line))
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)


@functools.cache
def compiler() -> subprocess.Popen[str]:
    """A process that serves and ends with this one: with TRITON_INTERPRET set at its import Triton compiles nothing."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_DISABLE_LINE_INFO": "1"}
    environment.pop("TRITON_INTERPRET", None)
    argv = [sys.executable, "-c", SERVE, str(Path(__file__).resolve())]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)


def asked(axes: dict[str, Any]) -> dict[str, Any]:
    """`compiled`, by the other process."""
    process = compiler()
    print(json.dumps(axes), file=process.stdin, flush=True)
    answer = json.loads(process.stdout.readline() or '{"error": "the compiling process ended"}')
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer


def run(case: Case) -> dict[str, torch.Tensor]:
    """The gradients, or the counts as fp64 scalars, or the PTX as its bytes."""
    if case.axes["site"] in ("backward", "whole"):
        return gradients(case) if case.axes["site"] == "backward" else whole_gradients(case)
    # A release without the kernel is unsupported; from the other process it would be an error.
    release()
    answer = asked(case.axes)
    if "ptx" in answer:
        return {"ptx": torch.frombuffer(bytearray(answer["ptx"], "utf-8"), dtype=torch.uint8)}
    case.numbers |= answer
    if case.axes["site"] == "source":
        case.numbers["file_lines"] = len(Path(release().__file__).read_text(encoding="utf-8").splitlines())
    return {name: torch.tensor(count, dtype=torch.float64) for name, count in answer.items()}

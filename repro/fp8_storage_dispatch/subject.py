"""Hands real TransformerEngine wrappers to a call or to the real Megatron dispatcher and tells what the consumer was given."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import stand_in
import torch
from absent import Absent
from fp8_wrappers import data_pointer, dlpack_pointer, is_wrapper, make_wrapper, parts_of, payload_bytes, rows_of
from subject_runtime import Case, Unsupported

PACKAGES = {"transformer-engine": "transformer_engine", "megatron-core": "megatron.core"}
PACKAGE = PACKAGES[os.environ.get("PATCHBENCH_UPSTREAM", "transformer-engine")]
TILELANG = SimpleNamespace(dsa_kernel_backend="tilelang")
HEAD_DIM, HEAD_DIM_V = 576, 512
LEAST_DISTANCE = 5e-3  # as repro.cpp's: the 8 bits cost 2.6 %
FUSED_SITES = ("fused_absorbed", "fp8_variant")
# The entry of the indexer, without and with its loss, and the kernel that it calls.
INDEXERS = {
    "indexer": ("run_fused_qk_topk", "lighting_indexer_indices"),
    "indexer_loss": ("run_fused_qk_topk_with_loss", "lighting_indexer"),
}

stand_in.install()

# What a consumer may do to one tensor. The EXPLICIT ones ask for a dense tensor by name.
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "data_ptr": lambda t: t,
    "dlpack": lambda t: t,
    "numpy": lambda t: t.numpy(),
    "nbytes": lambda t: t.nbytes,
    "untyped_storage": lambda t: t.untyped_storage(),
    "contiguous": lambda t: t.contiguous(),
    "view": lambda t: t.view(-1, t.shape[-1]),
    "reshape": lambda t: t.reshape(-1, t.shape[-1]),
    "flatten": lambda t: t.flatten(),
    "detach": lambda t: t.detach(),
    "clone": lambda t: t.clone(),
    "select": lambda t: t[:, 0],
    "slice": lambda t: t[: t.shape[0] // 2],
    "split": lambda t: t.split(t.shape[0] // 2),
    "chunk": lambda t: t.chunk(2),
    "new_zeros": lambda t: t.new_zeros(t.shape),
    "to_same": lambda t: t.to(t.device),
    "to_bfloat16": lambda t: t.to(torch.bfloat16),
    "to_float32": lambda t: t.to(torch.float32),
    "float": lambda t: t.float(),
    "half": lambda t: t.half(),
    "bfloat16": lambda t: t.bfloat16(),
    "dequantize": lambda t: t.dequantize() if is_wrapper(t) else t,
    "permute": lambda t: t.permute(*reversed(range(t.dim()))),
    "transpose": lambda t: t.transpose(0, 1),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "squeeze": lambda t: t.squeeze(),
    "index_none": lambda t: t[None],
    "expand": lambda t: t.expand(2, *t.shape),
    "pad": lambda t: torch.nn.functional.pad(t, (0, 1)),
    "cat": lambda t: torch.cat([t, t]),
    "matmul": lambda t: torch.matmul(t, torch.ones(t.shape[-1], 1, dtype=t.dtype, device=t.device)),
    "einsum": lambda t: torch.einsum("...d,d->...", t, torch.ones(t.shape[-1], dtype=t.dtype, device=t.device)),
    "add": lambda t: t + 1,
    "index_select": lambda t: t.index_select(0, torch.zeros(1, dtype=torch.int64, device=t.device)),
    "copy_into_dense": lambda t: torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t),
    "cpu": lambda t: t.cpu(),
    "empty_like": lambda t: torch.empty_like(t),
    "registered_op": lambda t: received_by_op(t),
}
EXPLICIT = ("to_float32", "float", "half", "bfloat16", "dequantize")


class Seen:
    """What one call handed over; `notes` go to the log."""

    def __init__(self) -> None:
        self.null_pointers = self.densified = self.raised = self.kernel_called = 0
        self.notes: list[str] = []


# The wrapper types that the mitigation has named in this process. It names each once, and counts every operand after that.
NAMED_BY_THE_MITIGATION: set[str] = set()


def counted_by_the_mitigation() -> int:
    """The operands that the mitigation has dequantised and counted in this process; 0 where it is not on."""
    mitigation = sys.modules.get("patchbench_mitigations.fp8_storage_dispatch")
    return mitigation.status().get("counts", {}).get("dequantized", 0) if mitigation else 0


class Announcements(logging.Handler):
    """The WARNING and worse records that name one of the wrapper types: what counts as saying that storage is given up."""

    def __init__(self, types: set[str]) -> None:
        super().__init__(logging.WARNING)
        self.types, self.texts = types, []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        named = {name for name in self.types if name in text}
        if named:
            self.texts.append(text)
        if record.name == "patchbench.mitigations":
            NAMED_BY_THE_MITIGATION.update(named)


@contextlib.contextmanager
def listening(tensors: list[torch.Tensor]) -> Iterator[list[str]]:
    """The announcements about these tensors' types while open."""
    handler = Announcements({type(t).__name__ for t in tensors if is_wrapper(t)})
    logging.getLogger().addHandler(handler)
    try:
        yield handler.texts
    finally:
        logging.getLogger().removeHandler(handler)


@contextlib.contextmanager
def dequantise_calls() -> Iterator[list[str]]:
    """Per call of the wrapper classes' own `dequantize` while open, the file of its caller; the classes stay as they are."""
    found: list[str] = []

    def watch(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "dequantize" and "transformer_engine" in frame.f_code.co_filename:
            found.append(frame.f_back.f_code.co_filename if frame.f_back else "")

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield found
    finally:
        sys.setprofile(before)


@functools.cache
def receiving_op() -> tuple[Callable[[torch.Tensor], torch.Tensor], list[torch.Tensor]]:
    """An operator registered as a user would register one, and the tensors that its kernel was given."""
    received: list[torch.Tensor] = []

    @torch.library.custom_op("patchbench_fp8_storage_dispatch::receive", mutates_args=())
    def receive(t: torch.Tensor) -> torch.Tensor:
        received.append(t)
        return torch.zeros((), device=t.device)

    return receive, received


def received_by_op(tensor: torch.Tensor) -> torch.Tensor:
    """What the kernel of a registered operator receives when the operator is called with the tensor."""
    op, received = receiving_op()
    received.clear()
    op(tensor)
    return received.pop()


def note_raise(seen: Seen, error: BaseException) -> None:
    """A raise is an outcome; its type and first line go to the log. A missing GPU is not an outcome."""
    text = (str(error).splitlines() or [""])[0]
    if not torch.cuda.is_available() and ("NVIDIA driver" in text or "compiled with CUDA" in text):
        raise Unsupported("this release does that on a GPU alone") from error
    seen.raised = 1
    seen.notes.append(f"{type(error).__name__}: {text[:120]}")


def hand_over(seen: Seen, name: str, tensor: torch.Tensor, read: Callable[[torch.Tensor], int]) -> None:
    """Reads the pointer as a consumer would; a tensor with elements that says bf16 and gives null is counted."""
    pointer = read(tensor)
    seen.null_pointers += tensor.numel() > 0 and tensor.dtype == torch.bfloat16 and pointer == 0
    seen.notes.append(f"{name} {type(tensor).__name__} {tensor.dtype} {'null' if pointer == 0 else 'pointer'}")


def run_pointer(given: torch.Tensor, read: Callable[[torch.Tensor], int]) -> Seen:
    """The pointer of the tensor and of the object that keeps its storage; `raised` where every one of them refuses."""
    makers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "itself": lambda t: t,
        "contiguous": lambda t: t.contiguous(),
        "detach": lambda t: t.detach(),
        "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    }
    seen, refused = Seen(), 0
    for name, make in makers.items():
        made = make(given)
        try:
            hand_over(seen, name, made, read)
        except Exception as e:
            refused += 1
            note_raise(seen, e)
    seen.raised = int(refused == len(makers))
    return seen


def run_copies(make: Callable[[slice], torch.Tensor]) -> tuple[Seen, dict[str, Any]]:
    """Deep copies of a wrapper, and a wrapper whose data is set to one of another shape: their pointers, and what about them is not as
    torch has it. `make` is told which rows."""
    seen, every = Seen(), slice(None)
    leaf, replaced = make(every).requires_grad_(), make(every)
    leaf.grad = torch.ones(leaf.shape, dtype=torch.bfloat16, device=leaf.device)
    twin, again = copy.deepcopy([leaf, leaf])
    replaced.data = make(slice(1))
    for name, made in (("deepcopy", twin), ("data", replaced)):
        with contextlib.suppress(RuntimeError):
            hand_over(seen, name, made, data_pointer)
    module = importlib.import_module("transformer_engine.pytorch.quantized_tensor")
    is_quantized = getattr(module, "is_quantized", lambda value: isinstance(value, module.QuantizedTensorStorage))
    own = type("Own", (module.QuantizedTensor,), {})(leaf.shape, torch.bfloat16, device=leaf.device)
    own.data = plain = leaf.grad.clone()
    is_refused = False
    try:
        copy.deepcopy(leaf.view(leaf.shape))
    except RuntimeError:
        is_refused = True
    facts = {
        "one object is copied once": twin is again,
        "a copy is a wrapper": is_wrapper(twin) and twin.requires_grad,
        "its bytes are equal": all(torch.equal(a, b) for a, b in zip(parts_of(leaf), parts_of(twin), strict=True)),
        "its bytes are its own": not {p.data_ptr() for p in parts_of(leaf)} & {p.data_ptr() for p in parts_of(twin)},
        "its gradient is equal": twin.grad is not leaf.grad and torch.equal(twin.grad, leaf.grad),
        "a result of an operator is not copied": is_refused,
        "data is set": replaced.shape == make(slice(1)).shape and torch.equal(parts_of(replaced)[0], parts_of(make(slice(1)))[0]),
        "a plain tensor keeps its pointer": own.data_ptr() == plain.data_ptr(),
        "is_quantized": is_quantized(leaf) and is_quantized(torch.nn.Parameter(twin, requires_grad=False)) and not is_quantized(leaf.grad),
    }
    wrong = [name for name, holds in facts.items() if not holds]
    seen.notes.append(f"wrong: {', '.join(wrong) or 'nothing'}")
    return seen, {"wrong_facts": len(wrong)}


def run_call(given: torch.Tensor, call: str) -> tuple[Seen, float]:
    """One call on the tensor: what came back of it, and by which part the reported bytes exceed the payload's."""
    seen, overstated = Seen(), 0.0
    with listening([given]) as said:
        try:
            result = CALLS[call](given)
            if call in ("data_ptr", "dlpack"):
                hand_over(seen, call, result, data_pointer if call == "data_ptr" else dlpack_pointer)
        except Exception as e:
            note_raise(seen, e)
            return seen, overstated
    if call == "nbytes":
        overstated = result / payload_bytes(given) - 1
    elif call == "untyped_storage":
        seen.notes.append(f"storage of {result.nbytes()} bytes for {payload_bytes(given)}")
    elif call not in ("data_ptr", "dlpack", "numpy"):
        for made in result if isinstance(result, tuple | list) else (result,):
            if is_wrapper(made):
                with contextlib.suppress(RuntimeError):  # a pointer that is refused is what a consumer should get
                    hand_over(seen, call, made, data_pointer)
            else:
                seen.notes.append(f"{call} gives a plain {made.dtype}")
                seen.densified += is_wrapper(given) and call not in EXPLICIT and not said
    return seen, overstated


def operand(case: Case, name: str, *, is_flat: bool = False) -> torch.Tensor:
    """`query` or `kv`: a wrapper where the case quantises it, else bf16. `is_flat`: without the axis of its one head."""
    axes, short = case.axes, {"query": "q", "kv": "kv"}[name]
    shaped = (lambda tensor: tensor.squeeze(-2)) if is_flat else lambda tensor: tensor
    if axes["storage"] == "bf16" or axes.get("quantised", "none") not in ("both", name):
        return shaped(case.tensors[name]).to(torch.bfloat16)
    return make_wrapper(axes["storage"], shaped(case.tensors[f"{short}_payload"]), case.tensors[f"{short}_scale_inv"])


def dispatcher() -> tuple[Any, Any]:
    """The release's backend-neutral hooks and its TileLang half."""
    names = [f"{stand_in.VARIANT}.{name}" for name in ("dsa_kernels", "ops.tilelang_dsa")]
    if any(name not in sys.modules for name in names):
        raise Unsupported("this release has no TileLang sparse-MLA dispatcher")
    return tuple(sys.modules[name] for name in names)


class Reached(Exception):
    """Ends a call where its kernel would run."""


def run_indexer(case: Case) -> tuple[Seen, dict[str, Any]]:
    """The indexer's real entry, ended where it reaches its kernel: what the kernel is handed."""
    kernels, tilelang_dsa = dispatcher()
    hook, kernel = INDEXERS[case.axes["site"]]
    query, kv = operand(case, "query"), operand(case, "kv", is_flat=True)
    num_queries, num_keys, seen = query.shape[0], kv.shape[0], Seen()
    words = {
        "q": query, "k": kv, "weights": torch.ones(query.shape[:3], dtype=torch.bfloat16, device=query.device),
        "index_topk": case.axes["topk"], "block_size": num_queries,
        "starts": torch.zeros(num_queries, dtype=torch.int32, device=query.device),
        "ends": torch.full((num_queries,), num_keys, dtype=torch.int32, device=query.device),
    }  # fmt: skip
    if case.axes["site"] == "indexer_loss":
        one_rank = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1, rank=lambda: 0))
        for name, shape in (("query", query.shape), ("key", (*kv.shape[:2], 1, HEAD_DIM))):
            words[name] = torch.zeros(shape, dtype=torch.bfloat16, device=query.device)
        words |= {"softmax_scale": HEAD_DIM**-0.5, "loss_coeff": 1.0, "pg_collection": one_rank}
    wrapped = {"query": is_wrapper(query), "kv": is_wrapper(kv)}
    plain: list[str] = []

    def reached(q: torch.Tensor, k: torch.Tensor, *_: Any, **__: Any) -> None:
        seen.kernel_called += 1
        for name, tensor in (("query", q), ("kv", k)):
            plain.extend([name] * (wrapped[name] and not is_wrapper(tensor)))
            hand_over(seen, name, tensor, data_pointer)
        raise Reached

    with listening([query, kv]) as said, mock.patch.object(tilelang_dsa, kernel, reached), contextlib.suppress(Reached):
        getattr(kernels, hook)(TILELANG, **words)
    given_up = len(plain) if seen.kernel_called else sum(wrapped.values())
    seen.densified = 0 if said else given_up
    seen.notes += ["declined"] * (not seen.kernel_called) + [f"said: {text[:120]}" for text in said]
    return seen, {"declined_dense": not any(wrapped.values()) and not seen.kernel_called}


def run_megatron(case: Case) -> tuple[Seen, dict[str, torch.Tensor]]:
    """The site's real function with a recorder for a kernel: what reached it, and for bf16 operands the values."""
    kernels, tilelang_dsa = dispatcher()
    query, kv, indices = operand(case, "query"), operand(case, "kv"), case.tensors["topk_indices"]
    site, seen, values = case.axes["site"], Seen(), {}
    wrapped = {"query": is_wrapper(query), "kv": is_wrapper(kv)}
    plain: list[str] = []
    types = {type(t).__name__ for t in (query, kv) if is_wrapper(t)}
    num_counted = counted_by_the_mitigation()

    def record(q: torch.Tensor, k: torch.Tensor, _: torch.Tensor) -> None:
        seen.kernel_called += 1
        for name, tensor, given in (("query", q, query), ("kv", k, kv)):
            if wrapped[name] and not is_wrapper(tensor) and tensor.element_size() > 1:
                plain.append(name)
            hand_over(seen, name, tensor, data_pointer)
            if not any(wrapped.values()):
                values[f"{name}_seen"] = in_layout(tensor, given, site)

    with listening([query, kv]) as said, stand_in.recording(record):
        try:
            if site in FUSED_SITES:
                result = kernels.run_fused_absorbed_sparse_attention(TILELANG, query, kv, indices, 0.1, HEAD_DIM_V)
            else:
                result = tilelang_dsa.SparseMLA.apply(query, kv, indices, 0.1)
        except Exception as e:
            note_raise(seen, e)
            return seen, values
    given_up = sum(wrapped.values()) if result is None else len(plain)
    is_counted = types <= NAMED_BY_THE_MITIGATION and counted_by_the_mitigation() - num_counted == given_up
    seen.densified = 0 if said or is_counted else given_up
    seen.notes += ["declined"] * (result is None) + [f"said: {text[:120]}" for text in said]
    return seen, values


@contextlib.contextmanager
def registered(variant: Callable[..., Any]) -> Iterator[bool]:
    """The variant in the release's seam for one, if it has a seam; whether it has."""
    register = getattr(dispatcher()[1], "register_sparse_mla_fp8_variant", None)
    if register is None:
        yield False
        return
    register(variant)
    try:
        yield True
    finally:
        register(None)


def run_with_variant(case: Case, calls: list[str]) -> tuple[Seen, dict[str, Any]]:
    """The fused entry with a recorder as its FP8-aware variant: a release with a seam must hand it the stored bytes as they are."""
    received: list[tuple[Any, Any]] = []

    def variant(query: Any, key: Any, _: Any, __: float, v_channels: int) -> torch.Tensor:
        received.append((query, key))
        return torch.zeros(*query.shape[:-1], v_channels, dtype=torch.bfloat16, device=query.device)

    with registered(variant) as has_seam:
        seen, _ = run_megatron(case)
    payloads = [case.tensors[f"{short}_payload"] for short in ("q", "kv")]
    is_stored = [is_wrapper(t) and torch.equal(t._data, payload) for pair in received for t, payload in zip(pair, payloads, strict=True)]
    is_kept = is_stored == [True, True] and not calls and not seen.kernel_called
    seen.notes.append(f"{len(received)} calls of the variant, {sum(is_stored)} operands as stored" if has_seam else "no seam for a variant")
    return seen, {"variant_missed": has_seam and not is_kept}


def run_without_variant(case: Case, calls: list[str]) -> tuple[Seen, dict[str, Any]]:
    """The fused entry without a variant: whether the kernel is given the dequantised values, by a dequantize() of the entry's own."""
    given = {name: operand(case, name) for name in ("query", "kv")}
    seen, counts = Seen(), dict.fromkeys(("wrong_at_the_kernel", "miscounted", "storage_kept"), 0)

    def record(query: torch.Tensor, kv: torch.Tensor, _: torch.Tensor) -> None:
        if query.element_size() == 1:
            raise Unsupported("the entry has a kernel for the stored bytes")
        seen.kernel_called += 1
        for name, tensor in (("query", query), ("kv", kv)):
            hand_over(seen, name, tensor, data_pointer)
            is_right = not is_wrapper(tensor) and torch.equal(in_layout(tensor, given[name], "fused_absorbed"), dense_values(case, name))
            counts["wrong_at_the_kernel"] += not is_right
            num_bytes = given[name].numel() * tensor.element_size()  # without padding
            counts["storage_kept"] += num_bytes <= payload_bytes(given[name])
            seen.notes.append(f"{name}: {num_bytes} bytes for {payload_bytes(given[name])} stored")

    with stand_in.recording(record):
        dispatcher()[0].run_fused_absorbed_sparse_attention(
            TILELANG, given["query"], given["kv"], case.tensors["topk_indices"], 0.1, HEAD_DIM_V
        )
    # Made dense unasked, by what torch dispatched.
    seen.densified = sum("megatron" not in caller and "patchbench_mitigations" not in caller for caller in calls)
    counts["miscounted"] = abs(len(calls) - len(given)) if seen.kernel_called else 0
    return seen, counts


def attend(query: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Sparse attention in fp32, [seqlen_q, batch, num_heads, HEAD_DIM_V]; 0 for a query without a key."""
    outs = []
    for b, index in enumerate(indices):
        keys, is_key = kv[index.clamp_min(0).long(), b, 0], (index >= 0).unsqueeze(1)
        logits = torch.einsum("shd,std->sht", query[:, b], keys) * HEAD_DIM**-0.5
        weights = logits.masked_fill(~is_key, -1e30).softmax(-1) * is_key
        outs.append(torch.einsum("sht,std->shd", weights, keys[..., :HEAD_DIM_V]))
    return torch.stack(outs, 1)


def need_kernels(case: Case) -> None:
    """Unsupported where the release's kernels can neither be compiled nor run as they are written."""
    if case.device != "cpu" and isinstance(importlib.import_module("tilelang"), Absent):
        raise Unsupported("TileLang is not installed with this project")


def entry_result(case: Case, query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
    """The fused entry's result by the release's own kernels; Unsupported where it declines."""
    need_kernels(case)
    out = dispatcher()[0].run_fused_absorbed_sparse_attention(TILELANG, query, kv, case.tensors["topk_indices"], HEAD_DIM**-0.5, HEAD_DIM_V)
    if out is None:
        raise Unsupported("the entry declines these operands and has no result")
    return out


def run_entry(case: Case, calls: list[str]) -> tuple[Seen, dict[str, Any]]:
    """The fused entry's result on two wrappers by the release's own kernels. At "entry_training" also the gradients that the wrappers
    get, of several backwards (axis `backwards`) the last. Any dequantize() is one operand that was not read as it is stored."""
    query, kv = (operand(case, name).requires_grad_() for name in ("query", "kv"))
    num_backwards, seen = case.axes.get("backwards", 1), Seen()
    with mock.patch.dict(os.environ, {"MCORE_DSA_TILELANG_SEQ_BUCKET": "1"}):  # rows and keys are otherwise padded to 256
        out = entry_result(case, query, kv)
        values = {"out": out.detach().float()}
        for _ in range(num_backwards if case.axes["site"] == "entry_training" else 0):
            grads = torch.autograd.grad(out, (query, kv), case.tensors["grad_out"], retain_graph=num_backwards > 1)
            values |= {"grad_q": grads[0].float(), "grad_kv": grads[1].float()}
    seen.densified = len(calls)
    if case.axes["site"] == "entry_training":
        values["is_fp8_used"] = is_far_from_unquantised(case, values["out"])
    return seen, values


def is_far_from_unquantised(case: Case, out: torch.Tensor) -> bool:
    """Whether the result is as far as e4m3 makes it from the answer on the values before they were stored. Nearer to it, nobody has read
    what is stored. Without any key both are 0, which tells nothing."""
    wanted = attend(case.tensors["q_unquantised"], case.tensors["kv_unquantised"], case.tensors["topk_indices"])
    if not wanted.any():
        return True
    distance = case.numbers["distance_from_unquantised"] = ((out - wanted).norm() / wanted.norm()).item()
    return distance >= LEAST_DISTANCE


def run_launch(case: Case) -> tuple[Seen, dict[str, Any]]:
    """The release's compiled kernel on two wrappers: whether its launch raises, and with which words."""
    if case.device == "cpu":
        raise Unsupported("a compiled kernel is launched on a GPU")
    need_kernels(case)
    seen = Seen()
    try:
        dispatcher()[1].SparseMLA.apply(operand(case, "query"), operand(case, "kv"), case.tensors["topk_indices"], HEAD_DIM**-0.5)
        torch.cuda.synchronize()
    except Exception as e:
        note_raise(seen, e)
    return seen, {"raised": seen.raised}


def run_storage(case: Case, calls: list[str]) -> tuple[Seen, dict[str, Any]]:
    """Whether the forward holds, beyond its operands and its result, as much as a bf16 copy of kv."""
    query, kv, seen = operand(case, "query"), operand(case, "kv"), Seen()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = entry_result(case, query, kv)
    seen.densified = len(calls)
    num_bytes = torch.cuda.max_memory_allocated() - held - out.numel() * out.element_size()
    case.numbers |= {"held_bytes": num_bytes, "dense_bytes": 2 * kv.numel(), "stored_bytes": payload_bytes(kv)}
    return seen, {"held_dense": num_bytes >= 2 * kv.numel()}


def dense_values(case: Case, name: str) -> torch.Tensor:
    """The values that the operand's stored bytes encode, rounded to bf16, as fp32."""
    short = {"query": "q", "kv": "kv"}[name]
    stored = case.tensors[f"{short}_payload"].view(torch.float8_e4m3fn).float()
    return (stored * case.tensors[f"{short}_scale_inv"]).to(torch.bfloat16).float()


def in_layout(tensor: torch.Tensor, given: torch.Tensor, site: str) -> torch.Tensor:
    """The kernel's [b, s, h, d], padding cut off, in the layout in which the caller gave it, as fp32."""
    seqlen = given.shape[1 if site == "sparse_mla_4d" else 0]
    kept = tensor[:, :seqlen, : given.shape[-2]].float()
    return {"fused_absorbed": kept.transpose(0, 1), "sparse_mla_3d": kept[0]}.get(site, kept).contiguous()


def run_payload(given: torch.Tensor, payload: torch.Tensor) -> tuple[Seen, dict[str, Any]]:
    """Whether `_data.data_ptr()` is a pointer to the bytes that the wrapper was made of."""
    data, seen = getattr(given, "_data", None), Seen()
    is_there = data is not None and data.data_ptr() != 0 and torch.equal(data, payload)
    seen.notes.append(f"{type(given).__name__}._data {'none' if data is None else f'{data.dtype}, {data.numel()} bytes'}")
    return seen, {"payload_missing": not is_there}


def run_site(case: Case, calls: list[str]) -> tuple[Seen, dict[str, Any]]:
    """What was seen at the case's site, and the outputs that this site alone has."""
    axes, site = case.axes, case.axes["site"]
    if site == "dtype_guard":
        guard = getattr(dispatcher()[1], "_all_bfloat16", None)
        if guard is None:
            raise Unsupported("this release has no _all_bfloat16")
        return Seen(), {"guard_passes": bool(guard(operand(case, "query"), operand(case, "kv")))}
    if site in ("fused_absorbed", "sparse_mla_4d", "sparse_mla_3d"):
        return run_megatron(case)
    if site in INDEXERS:
        return run_indexer(case)
    if site in ("fp8_variant", "no_fp8_variant"):
        return (run_with_variant if site == "fp8_variant" else run_without_variant)(case, calls)
    if site == "kernel_launch":
        return run_launch(case)
    if site.startswith("entry_"):
        return (run_storage if site == "entry_storage" else run_entry)(case, calls)
    if axes["storage"] == "bf16":
        given = case.tensors["query"].to(torch.bfloat16)
    else:
        given = make_wrapper(axes["storage"], case.tensors["payload"], case.tensors["scale_inv"])
    if site == "copies":
        return run_copies(functools.partial(rows_of, case))
    if site == "payload_pointer":
        return run_payload(given, case.tensors["payload"])
    if site == "call":
        seen, overstated = run_call(given, axes["call"])
        return seen, {"raised": seen.raised, "overstated": overstated}
    return run_pointer(given, {"raw_pointer": data_pointer, "dlpack": dlpack_pointer}[site]), {}


def run(case: Case) -> dict[str, torch.Tensor]:
    """Counts of the consumer's inputs, as fp32 scalars; values at the kernel's boundary as fp32 tensors."""
    if case.device == "cpu":
        torch.set_num_threads(1)  # small tensors: threads that wait for one another cost more than they give
    with stand_in.on_this_device(case.device), dequantise_calls() as calls:
        seen, more = run_site(case, calls)
    notes = "; ".join(seen.notes) or ", ".join(f"{name} {value}" for name, value in more.items())
    print(f"{case.name}: {len(calls)} x dequantize, {seen.kernel_called} kernel calls, {seen.raised} raised; {notes}")
    has_counts = case.axes["site"] not in ("dtype_guard", "payload_pointer")
    found = {"null_pointers": seen.null_pointers, "densified": seen.densified} if has_counts else {}
    found |= more
    return {name: value if torch.is_tensor(value) else torch.tensor(float(value)) for name, value in found.items()}

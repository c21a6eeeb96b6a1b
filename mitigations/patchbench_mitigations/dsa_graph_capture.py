"""Megatron-LM's sparse attention (DSA): no host read, no host scalar and no index of -1 on the path that is captured.

Functions of `megatron.core.transformer.experimental_attention_variant` are replaced in their modules, each only if the probe
sees its defect in the installed release; which of them that is differs between 0.16 and 0.19:

  dsa.bwd_fused_indexer_loss_naive                      host_scalar     rows that are all valid are passed on, so that the
                                                                        count of rows is made on the device
  dsa_layout.build_packed_allgather_cp_local_positions  host_read       positions by a search in the summed lengths
  dsa_masking.scatter_topk_into_index_mask              host_read       patchbench::topk_to_index_mask_ where its library
                                                                        loads, else a maximum with 0 and -inf
  dsa_masking.build_fused_indexer_varlen_bounds         host_read       while capturing: declines what a comparison decides
  dsa._validate_nonpacked_cp_uniform_length             host_read       while capturing: the lengths of the other ranks are
                                                                        not read; the eager steps before have compared them
  dsa.compute_dsa_indexer_loss, dsa.unfused_dsa_fn,     sentinel_index  -1 becomes another index of its row
  dsa.bwd_fused_indexer_loss_naive

One mode, "exact" ("auto" is the same): every result has the release's bits, or the release's answer after an eager decline.
A row without any index is refused where -1 was rejected: on the CPU by name, on a GPU by the release's device assert.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from patchbench_mitigations.fingerprint import own_function
from patchbench_mitigations.megatron import VARIANT, Modules, modules_for, version_for
from patchbench_mitigations.registry import load_op
from patchbench_mitigations.switch import Arguments, Finding, Hook, Mitigation, Placement

SLUG = "dsa_graph_capture"
UPSTREAM = "megatron-core"
NEGATIVE_INFINITY = float("-inf")
_probing = threading.local()

Function = Callable[..., Any]


@dataclass(frozen=True)
class Site:
    """One defect of one function. `takes` are its arguments, `may_take` those that only some releases have; `shows` runs it
    on a tiny problem and says what was seen ("" for nothing); `replaced` makes the function that replaces it."""

    module: str
    name: str
    defect: str
    takes: str
    may_take: str
    shows: Callable[[Function], str]
    replaced: Callable[[Function], Function]

    @property
    def label(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def key(self) -> str:
        return f"{self.label} {self.defect}"

    def fits(self, function: Function) -> bool:
        """Whether the function's arguments are those that were measured."""
        names, takes = set(inspect.signature(function).parameters), set(self.takes.split())
        return takes <= names <= takes | set(self.may_take.split())


def is_capturing(device: torch.device) -> bool:
    """Whether a capture is under way. With CPU tensors CUDA is not asked before it is in use: to ask makes a context."""
    if getattr(_probing, "on", False):
        return True
    if device.type == "cpu" and not torch.cuda.is_initialized():
        return False
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:  # no driver
        return False


def _served() -> None:
    if _own.hook is not None:
        _own.hook.serve(calls=1)


def _leaves() -> bool:
    return _own.hook is not None and _own.hook.leaves()


# ---- the replacements ----


def with_all_rows_valid(original: Function) -> Function:
    """Where the caller names no valid rows, names all of them: their count is then a sum on the device. The factor that a
    row gets is 1, and the count the same float32, so that the gradients keep their bits. Costs one float32 tensor
    [batch, seqlen_q, seqlen_k] while the gradient is formed."""

    arguments = Arguments(inspect.signature(original))

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        _served()
        given = arguments.of(args, words)
        if given["query_valid_rows"] is None and not given["calculate_per_token_loss"]:
            query = given["query"]
            batch = query.shape[1] if query.dim() == 4 else 1
            given["query_valid_rows"] = torch.ones(batch, query.shape[0], dtype=torch.bool, device=query.device)
        return arguments.call(original, given)

    return replacement


def positions_of(cu_seqlens: torch.Tensor, cp_size: int, cp_rank: int, output_size: int) -> torch.Tensor:
    """[output_size] int64: the token positions of one context-parallel rank; no host read.

    A rank holds of each sequence [first, end) its chunk of len / (2 cp_size) from the front and the mirrored one from the
    back. Output slot i lies in the first chunk whose summed length exceeds i, so that empty chunks are passed over. Slots
    behind the last chunk are padding: cu_seqlens[-1] + cp_rank * output_size onwards."""
    half = cu_seqlens.diff().clamp_min(0) // (2 * cp_size)
    front, back = cu_seqlens[:-1] + cp_rank * half, cu_seqlens[1:] - (cp_rank + 1) * half
    chunk_ends = torch.stack((half, half), 1).flatten().cumsum(0)
    starts = torch.cat((torch.stack((front, back), 1).flatten(), cu_seqlens[-1:] + cp_rank * output_size))
    firsts = torch.cat((chunk_ends.new_zeros(1), chunk_ends))
    slots = torch.arange(output_size, device=cu_seqlens.device)
    chunk = torch.searchsorted(chunk_ends, slots, right=True)
    return starts.index_select(0, chunk) + slots - firsts.index_select(0, chunk)


def _is_regular(cu_seqlens: torch.Tensor, cp_size: int, output_size: int, covers: bool) -> bool:
    """Whether CPU lengths are such that the release answers, and not with an empty tensor."""
    lengths = cu_seqlens.diff().clamp_min(0)
    total = int(lengths.sum()) // cp_size
    fits = total == output_size if covers else total <= output_size
    return total > 0 and fits and not bool((lengths % (2 * cp_size)).any())


def with_searched_positions(original: Function) -> Function:
    """`positions_of` where the output's length is known: on the CPU for lengths that the release takes, on a GPU while
    capturing. Everything else, eager GPU steps included, is the release's. While capturing, lengths without one token give
    the positions of padding and not an empty tensor: a shape that depends on device data is what capture forbids."""
    knows_padding = "cu_seqlens_cover_output" in inspect.signature(original).parameters

    arguments = Arguments(inspect.signature(original))

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        if _leaves():
            return original(*args, **words)
        _served()
        given = arguments.of(args, words)
        device, cp_size, output_size = torch.device(given["device"]), given["cp_size"], given["output_size"]
        if output_size is None or output_size <= 0 or cp_size <= 1:
            return original(*args, **words)
        covers = given.get("cu_seqlens_cover_output", not knows_padding)
        cu_seqlens = given["cu_seqlens"].to(device=device, dtype=torch.int64)
        is_cpu = cu_seqlens.device.type == "cpu"
        if not (_is_regular(cu_seqlens, cp_size, output_size, covers) if is_cpu else is_capturing(device)):
            return original(*args, **words)
        return positions_of(cu_seqlens, cp_size, given["cp_rank"], output_size)

    return replacement


load_ops = functools.partial(load_op, "topk_to_index_mask_")


def _check_top_k(topk_indices: torch.Tensor) -> None:
    if topk_indices.dim() != 3:
        raise _own.refusal(f"topk_indices must have 3 axes [batch, seqlen_q, topk], got {topk_indices.dim()}")


def open_chosen_keys(index_mask: torch.Tensor, topk_indices: torch.Tensor, rows: int) -> None:
    """index_mask[b, s, topk_indices[b, s, k]] = 0 in place for indices >= 0, `rows` rows of s at a time; no host read. A
    maximum with 0 opens a key, one with -inf changes nothing: exact for a mask of 0 and -inf."""
    for first in range(0, index_mask.shape[1], max(1, rows)):
        chosen = topk_indices[:, first : first + max(1, rows)].to(device=index_mask.device, dtype=torch.int64)
        level = index_mask.new_zeros(chosen.shape).masked_fill_(chosen < 0, NEGATIVE_INFINITY)
        index_mask[:, first : first + max(1, rows)].scatter_reduce_(-1, chosen.clamp_min(0), level, "amax")


def without_branches(original: Function) -> Function:
    """The scatter by our op where it serves, else by `open_chosen_keys`; Refused for a mask that is not float32."""
    is_op = not load_ops()

    @functools.wraps(original)
    def replacement(index_mask: torch.Tensor, topk_indices: torch.Tensor, *, seq_chunk_size: int = 256) -> None:
        if _leaves():
            return original(index_mask, topk_indices, seq_chunk_size=seq_chunk_size)
        _served()
        _check_top_k(topk_indices)
        if index_mask.dtype != torch.float32:
            raise _own.refusal(f"index_mask must have dtype float32, got {index_mask.dtype}")
        if topk_indices.shape[:2] != index_mask.shape[:2]:
            wanted, got = list(index_mask.shape[:2]), list(topk_indices.shape[:2])
            raise _own.refusal(f"topk_indices must begin with the shape {wanted}, got {got}")
        is_served = index_mask.is_contiguous() and topk_indices.device == index_mask.device
        # Without patchbench_ops the op has no fake implementation, so that torch.compile cannot trace it.
        is_served &= is_op and not torch.compiler.is_compiling()
        if is_served and topk_indices.dtype in (torch.int32, torch.int64):
            if not index_mask.is_meta:  # a meta tensor holds nothing to write, and the library alone has no fake implementation
                torch.ops.patchbench.topk_to_index_mask_(index_mask, topk_indices)
                return None
            return None
        open_chosen_keys(index_mask, topk_indices, int(seq_chunk_size))
        return None

    return replacement


def declining_while_capturing(original: Function) -> Function:
    """The comparisons decide whether the fused path is eligible. While capturing they cannot be made: what only they could
    admit (a mask, explicit key positions) is declined, and what they cannot reject is answered."""

    arguments = Arguments(inspect.signature(original))

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        _served()
        given = arguments.of(args, words)
        starts, ends, mask, device = (given[name] for name in ("varlen_starts", "varlen_ends", "mask", "device"))
        is_refused = starts is not None and (mask is not None or ends is None)
        if is_refused or (starts is None and mask is None) or not is_capturing(torch.device(device)):
            return original(*args, **words)
        if mask is not None or given["key_positions"] is not None:
            return None
        return tuple(bound.to(device=device, dtype=torch.int64).to(torch.int32) for bound in (starts, ends))

    return replacement


def comparing_outside_capture(original: Function) -> Function:
    """While capturing the other ranks' lengths are not gathered: they are only compared, and a comparison reads the device.
    The key length is checked as ever. Every rank captures the same step, so that none waits for a gather."""

    arguments = Arguments(inspect.signature(original))

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        _served()
        given = arguments.of(args, words)
        if is_capturing(torch.device(given["device"])):
            given["cp_group"] = None
        return arguments.call(original, given)

    return replacement


def with_real_indices(original: Function) -> Function:
    """Each negative index becomes the largest of its row. A key that is chosen twice is chosen, so that the mask is that of
    the other indices alone. A row without any index stays as it is: the release rejects it."""

    arguments = Arguments(inspect.signature(original))

    @functools.wraps(original)
    def replacement(*args: Any, **words: Any) -> Any:
        _served()
        given = arguments.of(args, words)
        indices = given["topk_indices"]
        _check_top_k(indices)
        if indices.shape[-1]:
            largest = indices.amax(-1, keepdim=True)
            given["topk_indices"] = torch.where(indices < 0, largest, indices)
        try:
            return arguments.call(original, given)
        except (IndexError, RuntimeError) as e:
            if indices.device.type == "cpu" and bool((indices < 0).all(-1).any()):
                raise _own.refusal("topk_indices has a row without any index, which this release cannot take") from e
            raise

    return replacement


# ---- probe ----


class _Seen(Exception):
    """An operator that capture refuses; the text names it."""


class _Reads(TorchDispatchMode):
    """Raises _Seen at the first operator that would read the device on the host, before it runs."""

    READS = ("_local_scalar_dense", "equal", "is_nonzero", "allclose", "nonzero", "masked_select")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        if name in self.READS or any(i is not None and i.dtype == torch.bool for i in indices):
            raise _Seen(f"aten::{name}")
        return func(*args, **(kwargs or {}))


class _HostNumbers(TorchFunctionMode):
    """Notes whether a tensor was made from a Python number by way of the host."""

    was_made = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.was_made |= func in (torch.tensor, torch.as_tensor)
        return func(*args, **(kwargs or {}))


@contextmanager
def _as_if_capturing() -> Iterator[None]:
    """The replacements take the way on which they are in a capture; for this thread alone."""
    _probing.on = True
    try:
        yield
    finally:
        _probing.on = False


def _reads(function: Function, **words: Any) -> str:
    """What a call on tensors of the meta device would have to read; they have no values, and need no GPU."""
    try:
        with _as_if_capturing(), _Reads():
            function(**words)
    except _Seen as seen:
        return f"{seen} reads the device"
    return ""


def _meta(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _shows_scatter(function: Function) -> str:
    return _reads(function, index_mask=_meta(1, 4, 8, dtype=torch.float32), topk_indices=_meta(1, 4, 3))


def _shows_bounds(function: Function) -> str:
    absent = dict.fromkeys(("mask", "varlen_starts", "varlen_ends", "key_positions"))
    common = {"sq": 4, "skv": 8, "device": torch.device("meta")} | absent
    bounds = {"varlen_starts": _meta(4), "varlen_ends": _meta(4)}
    masks = [{"mask": _meta(*shape, dtype=torch.float32)} for shape in ((4, 8), (2, 4, 8))]
    tried = (bounds, bounds | {"key_positions": _meta(8)}, *masks)
    return next(filter(None, (_reads(function, **common | words) for words in tried)), "")


def _shows_positions(function: Function) -> str:
    return _reads(function, cu_seqlens=_meta(3), cp_size=2, cp_rank=1, device=torch.device("meta"), output_size=8)


class _TwoRanks:
    """torch, as a process of a group of two sees it; the other rank's tensors are left as they are."""

    distributed = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, all_gather=lambda *a, **w: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _shows_uniform_length(function: Function) -> str:
    if not hasattr(function, "__wrapped__"):  # the release's code, among two ranks that need not be there
        world = function.__globals__ | {"torch": _TwoRanks(), "get_pg_size": lambda group: 2}
        function = FunctionType(function.__code__, world)
    return _reads(function, sq=4, skv=8, cp_size=2, cp_group=SimpleNamespace(size=lambda: 2), device=torch.device("meta"))


def _loss_words(function: Function, indices: torch.Tensor, is_sparse: bool = True) -> dict[str, Any]:
    """A causal problem of four tokens and one head, on the CPU, the arguments that the function takes."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    one_rank = SimpleNamespace(tp=SimpleNamespace(size=lambda: 1))
    scores = normal(1, 4, 4) + torch.full((4, 4), NEGATIVE_INFINITY).triu(1)
    words = {
        "q": normal(4, 1, 1, 8), "weights": normal(4, 1, 1), "k": normal(4, 1, 8), "query": normal(4, 1, 1, 8),
        "key": normal(4, 1, 1, 8), "value": normal(4, 1, 1, 8), "index_scores": scores, "topk_indices": indices,
        "softmax_scale": 1.0, "loss_coeff": 1.0, "sparse_loss": is_sparse, "mask": None, "grad_loss": torch.ones(()),
        "pg_collection": one_rank,
    }  # fmt: skip
    known = inspect.signature(function).parameters
    return {name: value for name, value in words.items() if name in known}


def _shows_host_scalar(function: Function) -> str:
    words = _loss_words(function, torch.tensor([[[0, 0], [1, 0], [2, 0], [3, 0]]]))
    with _HostNumbers() as numbers:
        function(**words)
    return "torch.tensor of a host number" if numbers.was_made else ""


def _shows_sentinel(function: Function) -> str:
    """An index of -1 together with a real one, on the CPU, where a rejection is an exception."""
    indices = torch.tensor([[[0, -1], [-1, 1], [2, 0], [3, -1]]])
    try:
        function(**_loss_words(function, indices))
    except (IndexError, RuntimeError) as e:
        if "out of bounds" not in str(e):
            raise
        return str(e).splitlines()[0]
    return ""


LOSS = "softmax_scale loss_coeff sparse_loss pg_collection"
LATER = "mask varlen_starts varlen_ends key_positions"
ROWS = "query_valid_rows calculate_per_token_loss"
SITES = (
    Site("dsa_masking", "scatter_topk_into_index_mask", "host_read", "index_mask topk_indices seq_chunk_size", "",
         _shows_scatter, without_branches),
    Site("dsa_masking", "build_fused_indexer_varlen_bounds", "host_read", f"sq skv device {LATER}", "",
         _shows_bounds, declining_while_capturing),
    Site("dsa_layout", "build_packed_allgather_cp_local_positions", "host_read",
         "cu_seqlens cp_size cp_rank device output_size", "cu_seqlens_cover_output",
         _shows_positions, with_searched_positions),
    Site("dsa", "_validate_nonpacked_cp_uniform_length", "host_read", "sq skv cp_size cp_group device", "",
         _shows_uniform_length, comparing_outside_capture),
    Site("dsa", "compute_dsa_indexer_loss", "sentinel_index", f"index_scores topk_indices query key {LOSS}",
         f"{LATER} {ROWS}", _shows_sentinel, with_real_indices),
    Site("dsa", "unfused_dsa_fn", "sentinel_index", "query key value topk_indices softmax_scale", LATER,
         _shows_sentinel, with_real_indices),
    Site("dsa", "bwd_fused_indexer_loss_naive", "sentinel_index",
         f"q weights k query key topk_indices grad_loss {LOSS}", f"{LATER} {ROWS} use_relu",
         _shows_sentinel, with_real_indices),
    Site("dsa", "bwd_fused_indexer_loss_naive", "host_scalar",
         f"q weights k query key topk_indices grad_loss {LOSS} {LATER} {ROWS}", "use_relu",
         _shows_host_scalar, with_all_rows_valid),
)  # fmt: skip


def _is_expected(site: Site, modules: Modules) -> bool:
    """Whether a release with these modules must hold the function: 0.16 has no backward of its own for the loss."""
    if site.name == "bwd_fused_indexer_loss_naive":
        return hasattr(modules["dsa"], "FusedDSAIndexerLoss")
    if site.name == "_validate_nonpacked_cp_uniform_length":
        return False  # private, and younger than the rest
    return site.module in modules


# ---- switch ----

KEYS = (
    f"{VARIANT}.dsa_masking:scatter_topk_into_index_mask", f"{VARIANT}.dsa_masking:build_fused_indexer_varlen_bounds",
    f"{VARIANT}.dsa_layout:build_packed_allgather_cp_local_positions", f"{VARIANT}.dsa:_validate_nonpacked_cp_uniform_length",
    f"{VARIANT}.dsa:compute_dsa_indexer_loss", f"{VARIANT}.dsa:unfused_dsa_fn", f"{VARIANT}.dsa:bwd_fused_indexer_loss_naive",
)  # fmt: skip


class _Dsa(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "patchbench::topk_to_index_mask_", KEYS
    counted = ("calls",)

    def meaning(self, mode: str) -> str:
        return "exact"

    def op_note(self, mode: str) -> str:
        return load_ops()

    def release(self) -> tuple[Modules, str]:
        version, modules = version_for(self), modules_for(self, ("dsa", "dsa_layout", "dsa_masking"))
        if "dsa" not in modules:
            raise self.refusal(f"megatron-core {version} has no sparse attention; 0.16.0 is the first that has")
        return modules, version

    def function_of(self, site: Site, modules: Modules) -> Function | None:
        """The release's own function, None where the release has none; Refused for one that is not as it was measured."""
        module = modules.get(site.module)
        function = getattr(module, site.name, None)
        if function is None:
            if _is_expected(site, modules):
                raise self.refusal(f"{site.label} is not in this release; it has changed since it was measured")
            return None
        if not own_function(function, module):
            raise self.refusal(f"{site.label} is wrapped already; undo that first")
        if not any(other.fits(function) for other in SITES if other.label == site.label):
            raise self.refusal(f"{site.label} takes other arguments than were measured: {inspect.signature(function)}")
        return function

    def look(self, release: Modules, version: str) -> Finding:
        sites: dict[str, str] = {}
        for site in SITES:
            function = self.function_of(site, release)
            if function is None or not site.fits(function):
                continue
            try:
                seen = site.shows(function)
            except Exception as e:
                return Finding("unknown", version, f"{site.label} raised {_first_line(e)}")
            if seen:
                sites[site.key] = seen
        if not sites:
            return Finding("right", version, "no function reads the device, copies a number from the host or rejects -1")
        return Finding("needed", version, "; ".join(f"{key}: {seen}" for key, seen in sites.items()), sites)

    def objection(self, release: Modules, finding: Finding) -> str:
        return f"megatron-core {finding.version}: {finding.reason}" if finding.state == "unknown" else ""

    def placements(self, release: Modules, hook: Hook) -> list[Placement]:
        made: list[Placement] = []
        for site in SITES:
            if site.key in hook.finding.sites:
                held = getattr(release[site.module], site.name)
                for earlier in made:  # two defects of one function
                    held = earlier.placed if earlier.label == site.label else held
                made.append(Placement(release[site.module], site.name, held, site.replaced(held), site.label))
        return made

    def left(self, release: Modules, hook: Hook) -> str:
        for site in SITES:
            if site.key in hook.finding.sites:
                try:
                    seen = site.shows(getattr(release[site.module], site.name))
                except Exception as e:
                    seen = f"raised {_first_line(e)}"
                if seen:
                    return f"{site.label}: {seen}"
        return ""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


_own = _Dsa()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status

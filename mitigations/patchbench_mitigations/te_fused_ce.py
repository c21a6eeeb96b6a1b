"""TransformerEngine's fused cross entropy: each row's loss and gradient from its own logits, label and grad_output.

The hook replaces `forward` and `backward` on the class object `CrossEntropyFunction`, so that `parallel_cross_entropy` and what
Megatron makes of it (`cross_entropy_fusion_impl` "te") see them, whatever name they were imported by.

  mode "op"     by patchbench::cross_entropy_statistics and _backward (libpatchbench_ops.so)
  mode "plain"  by torch alone
  mode "auto"   "op" where the library loads, else "plain"

Exact for any strides of logits, labels and grad_output, with ignored labels, label smoothing, the mean, a vocabulary that is
spread over ranks, and any number of backwards. The logits are kept as they are, so that a consumer that reads them afterwards is
right, too: the gradient takes memory of its own, of the logits' size, in backward. Differentiating twice raises.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from patchbench_mitigations.registry import load_op
from patchbench_mitigations.switch import Finding, Hook, Mitigation, Placement, probe_device, saveable

SLUG = "te_fused_ce"
UPSTREAM = "transformer-engine"
TARGET = "transformer_engine.pytorch.cross_entropy"
CLASS = "CrossEntropyFunction"
MEGATRON = "megatron.core.extensions.transformer_engine"
KEYS = (f"{TARGET}:{CLASS}.forward", f"{TARGET}:{CLASS}.backward")
CHUNK_BYTES = 64 << 20  # of one float32 chunk of logits in the plain form, which holds about three of them

load_ops = functools.partial(load_op, "cross_entropy_statistics")


# ---- the computation ----


@dataclass
class Problem:
    """One call: tensors without a graph, and its scalars. `rank` of `num_ranks` holds the classes from rank * v on."""

    logits: torch.Tensor
    labels: torch.Tensor
    label_smoothing: float
    is_mean: bool
    ignore_index: int
    group: Any
    is_by_op: bool

    @property
    def rank(self) -> int:
        return 0 if self.group is None else dist.get_rank(self.group)

    @property
    def num_ranks(self) -> int:
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def first_class(self) -> int:
        return self.rank * self.logits.shape[2]

    @property
    def num_classes(self) -> int:
        return self.num_ranks * self.logits.shape[2]

    def is_ignored(self) -> torch.Tensor:
        return self.labels == self.ignore_index

    def chunks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows (of the first axis) whose float32 logits stay within CHUNK_BYTES, and these logits."""
        count, row = self.logits.shape[0], 4 * self.logits.shape[1] * self.logits.shape[2]
        step = max(1, CHUNK_BYTES // max(1, row))
        for first in range(0, count, step):
            rows = slice(first, min(first + step, count))
            yield rows, self.logits[rows].to(torch.promote_types(self.logits.dtype, torch.float32))


def local_statistics(problem: Problem) -> torch.Tensor:
    """[4, b, s] of this rank's classes: maximum, sum of exponentials less the maximum's own 1, the label's logit or -inf, sum."""
    if problem.is_by_op:
        return torch.ops.patchbench.cross_entropy_statistics(problem.logits, problem.labels, problem.first_class)
    parts = []
    for rows, x in problem.chunks():
        most = x.max(2, keepdim=True)
        # Without the maximum's own 1 a confident row keeps its digits.
        rest = (x - most.values).exp().scatter(2, most.indices, 0).sum(2)
        label = (problem.labels[rows] - problem.first_class).unsqueeze(2)
        is_here = (label >= 0) & (label < x.shape[2])
        found = x.gather(2, label.masked_fill(~is_here, 0)).masked_fill(~is_here, -torch.inf)
        parts.append(torch.stack([most.values.squeeze(2), rest, found.squeeze(2), x.sum(2)]))
    return torch.cat(parts, 1)


def combined(parts: torch.Tensor) -> torch.Tensor:
    """[ranks, 4, b, s] -> [4, b, s]."""
    row_max, rest, label, total = parts.unbind(1)
    most = row_max.max(0, keepdim=True)
    sums = (1 + rest) * (row_max - most.values).exp()
    rests = sums.scatter(0, most.indices, rest.gather(0, most.indices)).sum(0)
    return torch.stack([most.values.squeeze(0), rests, label.amax(0), total.sum(0)])


def statistics_of(problem: Problem) -> torch.Tensor:
    """[4, b, s] over all ranks' classes."""
    local = local_statistics(problem)
    if problem.num_ranks == 1:
        return local
    gathered = local.new_empty(problem.num_ranks * local.shape[0], *local.shape[1:])
    dist.all_gather_into_tensor(gathered, local, group=problem.group)
    return combined(gathered.view(problem.num_ranks, *local.shape))


def loss_of(problem: Problem, statistics: torch.Tensor) -> torch.Tensor:
    """[b, s], or [] for the mean."""
    row_max, rest, label, total = statistics
    log_sum = rest.log1p()
    loss = log_sum - (label - row_max)
    if problem.label_smoothing > 0:
        even = log_sum - (total / problem.num_classes - row_max)
        loss = loss * (1 - problem.label_smoothing) + even * problem.label_smoothing
    ignored = problem.is_ignored()
    loss = loss.masked_fill(ignored, 0)
    return loss.sum() / (~ignored).sum().clamp(min=1) if problem.is_mean else loss


def gradient_of(problem: Problem, statistics: torch.Tensor, grad_output: torch.Tensor) -> torch.Tensor:
    """The logits' gradient of this rank's classes: computed in float32 with each row's own factor, rounded once. Ignored rows are
    filled with 0, not multiplied by it: their factor may be inf."""
    ignored = problem.is_ignored()
    scale = grad_output.to(statistics.dtype)
    if problem.is_mean:
        scale = scale.reshape(()) / (~ignored).sum().clamp(min=1)
    scale = scale.expand_as(ignored).masked_fill(ignored, 0)
    if problem.is_by_op:
        words = {"reduction": "none", "ignore_index": problem.ignore_index, "label_smoothing": problem.label_smoothing}
        places = (problem.first_class, problem.num_classes)
        return torch.ops.patchbench.cross_entropy_backward(scale, statistics, problem.logits, problem.labels, *places, **words)
    classes = torch.arange(problem.logits.shape[2], device=ignored.device) + problem.first_class
    grad = torch.empty_like(problem.logits, memory_format=torch.contiguous_format)
    for rows, x in problem.chunks():
        y, rest = x - statistics[0, rows].unsqueeze(2), statistics[1, rows].unsqueeze(2)
        is_label = problem.labels[rows].unsqueeze(2) == classes
        # p - 1 cancels where p is near 1, which is where the model is confident.
        slope = torch.where(is_label, (y - rest.log1p()).expm1() + problem.label_smoothing, y.exp() / (1 + rest))
        grad[rows] = (slope - problem.label_smoothing / problem.num_classes) * scale[rows].unsqueeze(2)
    return grad


# ---- the hook ----


def _problem_of(hook: Hook, arguments: list[Any], names: list[str]) -> Problem:
    """The call as a Problem; Refused for what would be answered wrongly."""
    given = dict(zip(names, arguments, strict=True))
    logits, labels = arguments[0], arguments[1]
    if labels.dtype != torch.int64:
        raise _own.refusal(f"target must have dtype int64, got {labels.dtype}; pass target.long()")
    if labels.numel() != logits.shape[0] * logits.shape[1]:
        raise _own.refusal(f"each token needs a label: {logits.shape[0] * logits.shape[1]} tokens, {labels.numel()} labels")
    tensors = (saveable(logits), saveable(labels).reshape(logits.shape[:2]))
    return Problem(*tensors, float(given["label_smoothing"]), bool(given["reduce_loss"]),
                   given.get("ignore_idx", -100), given["dist_process_group"], not hook.op_note)  # fmt: skip


def _forward_for(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def forward(ctx: Any, *args: Any) -> torch.Tensor:
        bound = signature.bind(ctx, *args)
        bound.apply_defaults()
        names = list(bound.arguments)[1:]
        if hook.leaves():
            return original(ctx, *args)
        hook.serve()
        problem = _problem_of(hook, list(bound.arguments.values())[1:], names)
        statistics = statistics_of(problem)
        ctx.patchbench_problem = problem
        ctx.save_for_backward(problem.logits, problem.labels, statistics)
        return loss_of(problem, statistics)

    return forward


def _backward_for(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        problem = getattr(ctx, "patchbench_problem", None)  # absent where forward ran before the hook
        if problem is None:
            return original(ctx, grad_output)
        if torch.is_grad_enabled():
            raise _own.refusal("the gradient cannot be differentiated again; call without create_graph=True")
        hook.serve(**{"op" if problem.is_by_op else "plain": 1})
        _, _, statistics = ctx.saved_tensors  # raises if one of them was changed in place since
        return (gradient_of(problem, statistics, grad_output), *[None] * (len(ctx.needs_input_grad) - 1))

    return backward


# ---- probe ----


@dataclass
class Question:
    """One tiny call, and the state of a release that answers it wrongly."""

    state: str
    logits: torch.Tensor
    labels: torch.Tensor
    grad_output: torch.Tensor
    is_mean: bool = False


def questions(device: str) -> list[Question]:
    """In the order in which they are asked. No release reaches past what is allocated here: where one is known to, the tensor
    is the beginning of a larger one."""
    generator = torch.Generator().manual_seed(20)
    batch, seqlen, vocab = 2, 3, 8
    x = torch.randn(batch, seqlen, vocab, generator=generator).to(device)
    labels = torch.tensor([[1, 5, 2], [7, 0, 3]], device=device)
    weights = torch.tensor([[0.0, 1.0, 0.5], [0.25, 2.0, 1.5]], device=device)
    even = torch.ones(batch, seqlen, device=device)
    one = torch.ones((), device=device)
    room = torch.zeros(4 * x.numel(), device=device)
    transposed = room[: x.numel()].view(seqlen, batch, vocab).copy_(x.transpose(0, 1)).transpose(0, 1)
    longer = torch.cat([x, torch.zeros_like(x[:, :1])], 1)
    shifted = torch.cat([torch.zeros_like(labels[:, :1]), labels], 1)[:, 1:]
    ignored = labels.masked_fill(labels == 2, -100)
    half = torch.bfloat16 if device == "cuda" else torch.float16
    confident = x.scatter_add(2, labels.unsqueeze(2), torch.full_like(x[..., :1], 10.0)).to(half)
    spread = torch.tensor([0.5] + [3.0] * 7, device=device)[0].expand(batch, seqlen)
    return [
        Question("row_zero_gradient", x, labels, weights),
        Question("sum_scaled", x, labels, even),
        Question("out_of_bounds_read", x, labels, spread),
        Question("storage_order_gradient", x, labels, weights.t().contiguous().t()),
        Question("transposed_view", transposed, labels, even),
        Question("ignored_labels", x, ignored, one, is_mean=True),
        Question("target_gradient_rounded", confident, labels, even),
        Question("sliced_sequence", longer[:, :-1], labels, even),
        Question("sliced_labels", x, shifted, even),
    ]


def is_answered(function: type, asked: Question) -> bool:
    """Whether the loss and the gradient that an autograd Function gives are float64's, as far as the dtype allows."""
    names = list(inspect.signature(function.forward).parameters)[1:]
    if (asked.labels < 0).any() and "ignore_idx" not in names:
        return True  # the release has no ignored labels
    wide = asked.logits.detach().double().contiguous().requires_grad_()
    reduction = "mean" if asked.is_mean else "none"
    right = F.cross_entropy(wide.flatten(0, 1), asked.labels.reshape(-1), reduction=reduction)
    (right_grad,) = torch.autograd.grad(right, wide, asked.grad_output.double().reshape(right.shape))
    # A copy of the storage, since a release may write into it.
    storage = asked.logits.untyped_storage().clone()
    held = torch.empty(0, dtype=asked.logits.dtype, device=asked.logits.device)
    held.set_(storage, asked.logits.storage_offset(), asked.logits.size(), asked.logits.stride())
    leaf = held.requires_grad_()
    loss = function.apply(leaf, asked.labels, 0.0, asked.is_mean, None)
    grad_output = asked.grad_output if loss.shape == asked.grad_output.shape else asked.grad_output.reshape(loss.shape)
    (grad,) = torch.autograd.grad(loss, leaf, grad_output)
    pairs = ((loss.detach().reshape(right.shape), right.detach()), (grad, right_grad))
    return all((got.double() - wanted).abs().max() <= 0.05 * wanted.abs().max() for got, wanted in pairs)


def observed(function: type) -> Finding:
    """What an autograd Function does; `sites` holds every class."""
    device = probe_device()
    if device is None:
        return Finding("unknown", "", "no GPU, and TRITON_INTERPRET is not 1: the kernels cannot run here")
    sites = {asked.state: "right" if is_answered(function, asked) else "wrong" for asked in questions(device)}
    wrong = [state for state, seen in sites.items() if seen == "wrong"]
    reason = f"wrong on a tiny problem: {', '.join(wrong)}" if wrong else "every class of this pack is right on a tiny problem"
    return Finding(wrong[0] if wrong else "right", "", reason, sites)


def megatron_uses(function: type) -> bool:
    """Whether the Megatron that is imported calls this very class where `cross_entropy_fusion_impl` is "te"."""
    alias = getattr(sys.modules.get(MEGATRON), "parallel_cross_entropy", None)
    return getattr(alias, "__self__", None) is function or getattr(alias, "__module__", "") == TARGET


# ---- switch ----


class _FusedCe(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "patchbench::cross_entropy_statistics", KEYS
    counted = ("op", "plain")
    force_lifts_unknown = True  # without a GPU no probe can run

    def op_note(self, mode: str) -> str:
        if mode == "op" and load_ops():
            raise self.refusal(f"mode op: {load_ops()}; use mode plain, or build the op for this torch")
        return "mode plain" if mode == "plain" else load_ops()

    def release(self) -> tuple[type, str]:
        return self.installed_class(TARGET, CLASS, ("forward", "backward"), "transformer-engine 2.2.0 or newer")

    def look(self, release: type, version: str) -> Finding:
        both = {name: staticmethod(getattr(release, name)) for name in ("forward", "backward")}
        found = observed(type("Upstream" + CLASS, (torch.autograd.Function,), both))
        where = "; Megatron's te_parallel_cross_entropy calls it" if megatron_uses(release) else ""
        return Finding(found.state, version, found.reason + where, found.sites)

    def placements(self, release: type, hook: Hook) -> list[Placement]:
        made = {"forward": _forward_for(hook, release.forward), "backward": _backward_for(hook, release.backward)}
        return [Placement(release, name, vars(release)[name], staticmethod(function), f"{CLASS}.{name}") for name, function in made.items()]

    def left(self, release: type, hook: Hook) -> str:
        found = observed(release)
        return "" if found.state == "right" or probe_device() is None else found.reason


_own = _FusedCe()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status

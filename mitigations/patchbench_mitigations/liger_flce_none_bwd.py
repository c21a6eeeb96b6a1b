"""Liger-Kernel's fused linear cross entropy with reduction="none": each row's gradient by its own grad_output.

The hook replaces `forward` and `backward` on the class object, so every alias of it sees them. Calls with "mean" and
"sum" go to the originals untouched. A "none" call computes the loss and, in backward, the logits again, chunk by chunk:

  mode "op"     by patchbench::flce (libpatchbench_ops.so of this torch), float32, bfloat16 and float64
  mode "plain"  by torch alone, any floating dtype
  mode "auto"   "op" where the library loads, else "plain"; a call that the op does not serve (float16, autocast,
                use_token_scaling) takes "plain" in every mode
  mode "approximate"  the release's own "sum" in place of both, asked for by name only: see below

Exact for any grad_output, with bias, class weights, label smoothing, z-loss and softcap. Differentiating twice raises, and
so does differentiating the z-loss that is returned for logging. Not for the Ascend, cuTile and CuTe classes.

Mode "approximate" gives each token with a label the mean loss, 0 to the others: right for a consumer that weighs all tokens
with labels alike (a mean over labels != ignore_index), wrong for every other, and its single losses are nobody's. Costs
3 matrix products and no second pass. A grad_output that differs between such tokens raises on a CPU; on a GPU, where to look
would stop the stream, it is remembered on the device and shown by `status()["is_unequal"]`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from patchbench_mitigations.registry import load_op
from patchbench_mitigations.switch import Finding, Hook, Mitigation, Placement, probe_device, saveable

SLUG = "liger_flce_none_bwd"
UPSTREAM = "liger-kernel"
TARGET = "liger_kernel.ops.fused_linear_cross_entropy"
CLASS = "LigerFusedLinearCrossEntropyFunction"
APPROXIMATE = "approximate"
KEYS = (f"{TARGET}:{CLASS}.forward", f"{TARGET}:{CLASS}.backward")
CHUNK_BYTES = 64 << 20  # of one float32 chunk of logits in the plain form, which holds about five of them
EXTRAS = ("return_z_loss", "return_token_accuracy", "return_predicted_tokens")
OP_DTYPES = (torch.float32, torch.bfloat16, torch.float64)


# ---- the plain form ----


@dataclass
class Problem:
    """One "none" call: tensors without graph, and the scalars of the loss."""

    hidden: torch.Tensor
    weight: torch.Tensor
    target: torch.Tensor
    bias: torch.Tensor | None
    class_weight: torch.Tensor | None
    ignore_index: int
    label_smoothing: float
    lse_square_scale: float
    softcap: float | None
    is_token_scaled: bool
    autocast: tuple[bool, torch.dtype]

    @property
    def device_type(self) -> str:
        return self.hidden.device.type

    def chunks(self) -> list[slice]:
        """Row ranges whose float32 logits stay within CHUNK_BYTES."""
        tokens, vocab = self.hidden.shape[0], self.weight.shape[0]
        step = max(1, CHUNK_BYTES // (4 * vocab))
        return [slice(first, min(first + step, tokens)) for first in range(0, tokens, step)]

    def logits(self, rows: slice) -> torch.Tensor:
        """[rows, vocab], rounded to the dtype in which the caller's linear layer would give them."""
        return F.linear(self.hidden[rows], self.weight, self.bias)

    def losses(self, logits: torch.Tensor, rows: slice) -> torch.Tensor:
        """Per-token losses of float32 (float64) logits, differentiable by them."""
        target = self.target[rows]
        y = logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
        weights = None if self.class_weight is None else self.class_weight.to(y.dtype)
        loss = F.cross_entropy(y, target, weights, ignore_index=self.ignore_index, reduction="none", label_smoothing=self.label_smoothing)
        valid = target != self.ignore_index
        if self.lse_square_scale:
            loss = loss + torch.where(valid, self.lse_square_scale * torch.logsumexp(y, -1).square(), 0.0)
        if self.is_token_scaled:
            index = torch.where(valid, target, 0).unsqueeze(-1)
            loss = loss * torch.softmax(y.detach(), -1).gather(-1, index).squeeze(-1)
        return loss


def _computed(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def plain_loss(problem: Problem) -> torch.Tensor:
    """[tokens], float32 (float64 for float64 inputs), without a graph."""
    with torch.no_grad(), torch.autocast(problem.device_type, enabled=problem.autocast[0], dtype=problem.autocast[1]):
        dtype = torch.float64 if problem.hidden.dtype == torch.float64 else torch.float32
        parts = [problem.losses(_computed(problem.logits(rows)), rows) for rows in problem.chunks()]
        return torch.cat(parts) if parts else problem.hidden.new_zeros(0, dtype=dtype)


def plain_gradients(problem: Problem, grad_output: torch.Tensor, wanted: tuple[bool, bool, bool]) -> list[torch.Tensor | None]:
    """Gradients of hidden, weight and bias (None where not wanted) of sum_i grad_output[i] * loss[i]. Each row of the
    logits' gradient is computed in float32 with its own factor and rounded once; sums over chunks are kept in float32."""
    acc = torch.float64 if problem.hidden.dtype == torch.float64 else torch.float32
    sources = (problem.hidden, problem.weight, problem.bias)
    shapes = [s.shape if s is not None and w else None for s, w in zip(sources, wanted, strict=True)]
    dtypes = [problem.hidden.dtype, acc, acc]
    sums = [None if s is None else problem.hidden.new_zeros(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]
    factor = torch.where(problem.target != problem.ignore_index, grad_output.to(acc), 0.0)
    with torch.autocast(problem.device_type, enabled=problem.autocast[0], dtype=problem.autocast[1]):
        for rows in problem.chunks():
            logits = problem.logits(rows)
            with torch.enable_grad():
                leaf = _computed(logits).detach().requires_grad_()
                grad_logits = torch.autograd.grad(problem.losses(leaf, rows), leaf, factor[rows])[0].to(logits.dtype)
            if sums[0] is not None:
                sums[0][rows] = (grad_logits @ problem.weight).to(sums[0].dtype)
            if sums[1] is not None:
                sums[1] += (grad_logits.t() @ problem.hidden[rows]).to(acc)
            if sums[2] is not None:
                sums[2] += grad_logits.sum(0, dtype=acc)
    return [None if g is None else g.to(s.dtype) for g, s in zip(sums, sources, strict=True)]


# ---- the op ----


load_ops = functools.partial(load_op, "flce_backward")


def _op_scalars(problem: Problem) -> dict[str, Any]:
    return {
        "reduction": "none",
        "ignore_index": problem.ignore_index,
        "label_smoothing": problem.label_smoothing,
        "lse_square_scale": problem.lse_square_scale,
        "softcap": problem.softcap,
    }


def _op_tensors(problem: Problem) -> tuple[torch.Tensor | None, ...]:
    return problem.hidden, problem.weight, problem.target, problem.bias, problem.class_weight


def _is_served_by_op(hook: Hook, problem: Problem) -> bool:
    same_dtype = problem.weight.dtype == problem.hidden.dtype
    return not hook.op_note and problem.hidden.dtype in OP_DTYPES and same_dtype and not problem.autocast[0] and not problem.is_token_scaled


# ---- the mean in place of each token's loss ----


def _mean_forward(original: Callable[..., Any], arguments: dict[str, Any], extras: list[str]) -> Any:
    """The release's "sum", shared out evenly among the tokens that have a label."""
    if any(arguments[name] for name in extras):
        raise _own.refusal(f"mode {APPROXIMATE} has no per-token {' or '.join(extras)}")
    ctx, target = arguments["ctx"], arguments["target"]
    result = original(*({**arguments, "reduction": "sum"}).values())
    is_labelled = target != arguments.get("ignore_index", -100)
    ctx.patchbench_share = is_labelled / is_labelled.sum().clamp(min=1)
    shared = (result[0] if isinstance(result, tuple) else result) * ctx.patchbench_share
    return (shared, *result[1:]) if isinstance(result, tuple) else shared


def _mean_factor(share: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """What the sum's gradient is scaled by; Refused, or remembered on a GPU, where grad_output is not one number."""
    if grad.shape != share.shape:
        raise _own.refusal(f"grad_output must have shape {list(share.shape)}, got {list(grad.shape)}")
    is_labelled = share > 0
    most, least = grad.masked_fill(~is_labelled, -torch.inf), grad.masked_fill(~is_labelled, torch.inf)
    is_unequal = (most.max() > least.min()) if grad.numel() else torch.zeros((), dtype=torch.bool)
    if grad.device.type != "cpu":
        _own.is_unequal = is_unequal if _own.is_unequal is None else _own.is_unequal | is_unequal
    elif is_unequal:
        raise _own.refusal(f"mode {APPROXIMATE}: grad_output differs between tokens with labels; use mode op or plain")
    return (grad.masked_fill(~is_labelled, 0) * share).sum()


# ---- the hook ----


def _problem_of(arguments: dict[str, Any]) -> Problem:
    """The call as a Problem; Refused for what would be answered wrongly."""
    target = arguments["target"]
    if target.dtype != torch.int64:
        raise _own.refusal(f"target must have dtype int64, got {target.dtype}; pass target.long()")
    device_type = target.device.type
    hidden, weight, bias, class_weight = (saveable(arguments.get(name)) for name in ("_input", "weight", "bias", "ce_weight"))
    return Problem(
        hidden=hidden,
        weight=weight,
        target=saveable(target),
        bias=bias,
        class_weight=class_weight,
        ignore_index=arguments.get("ignore_index", -100),
        label_smoothing=float(arguments.get("label_smoothing") or 0.0),
        lse_square_scale=float(arguments.get("lse_square_scale") or 0.0),
        softcap=arguments.get("softcap"),
        is_token_scaled=bool(arguments.get("use_token_scaling")),
        autocast=(torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)),
    )


def _forward_for(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)
    extras = [name for name in EXTRAS if name in signature.parameters]

    @functools.wraps(original)
    def forward(ctx: Any, *args: Any) -> Any:
        bound = signature.bind(ctx, *args)
        bound.apply_defaults()
        ctx.patchbench_problem = ctx.patchbench_share = None
        if bound.arguments["reduction"] != "none" or hook.leaves():
            return original(ctx, *args)
        hook.serve()
        if hook.mode == APPROXIMATE:
            return _mean_forward(original, bound.arguments, extras)
        problem = _problem_of(bound.arguments)
        ctx.patchbench_lse = None
        wants_extras = any(bound.arguments[name] for name in extras)
        if wants_extras and hook.finding.state == "reduction_ignored":
            raise _own.refusal(f"liger-kernel {hook.finding.version} has no per-token {' or '.join(extras)}")
        if wants_extras:
            result = original(ctx, *args)
        elif _is_served_by_op(hook, problem):
            loss, ctx.patchbench_lse = torch.ops.patchbench.flce_forward(*_op_tensors(problem), **_op_scalars(problem))
            result = (loss, *[None] * len(extras))
        else:
            result = (plain_loss(problem), *[None] * len(extras))
        # The originals saved gradients if they ran; the tensors of this call take their place.
        ctx.save_for_backward(*_op_tensors(problem))
        ctx.set_materialize_grads(False)
        ctx.patchbench_problem = problem
        ctx.patchbench_places = [list(signature.parameters).index(n) - 1 for n in ("_input", "weight", "bias")]
        return result if extras else result[0]

    return forward


def _gradients(hook: Hook, ctx: Any, problem: Problem, grad: torch.Tensor, wanted: tuple[bool, bool, bool]) -> list[torch.Tensor | None]:
    if not _is_served_by_op(hook, problem):
        hook.serve(plain=1)
        return plain_gradients(problem, grad, wanted)
    hook.serve(op=1)
    lse = ctx.patchbench_lse
    if lse is None:
        lse = torch.ops.patchbench.flce_forward(*_op_tensors(problem), **_op_scalars(problem))[1]
    return list(torch.ops.patchbench.flce_backward(grad, lse, *_op_tensors(problem), **_op_scalars(problem), output_mask=list(wanted)))


def _backward_for(hook: Hook, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(ctx: Any, grad_output: torch.Tensor | None, *others: torch.Tensor | None) -> Any:
        if (share := getattr(ctx, "patchbench_share", None)) is not None:
            hook.serve(approximate=1)
            return original(ctx, _mean_factor(share, grad_output), *others)
        problem = getattr(ctx, "patchbench_problem", None)  # absent where forward ran before the hook
        if problem is None:
            return original(ctx, grad_output, *others)
        if torch.is_grad_enabled():
            raise _own.refusal("the gradients cannot be differentiated again; call without create_graph=True")
        if any(other is not None for other in others):
            raise _own.refusal("only the loss can be differentiated; the other outputs are for logging: detach them")
        gradients: list[torch.Tensor | None] = [None] * len(ctx.needs_input_grad)
        if grad_output is None:
            return tuple(gradients)
        if grad_output.shape != problem.target.shape:
            raise _own.refusal(f"grad_output must have shape {list(problem.target.shape)}, got {list(grad_output.shape)}")
        _ = ctx.saved_tensors  # raises if one of them was changed in place since
        places = [p if p < len(gradients) else None for p in ctx.patchbench_places]
        wanted = tuple(p is not None and bool(ctx.needs_input_grad[p]) for p in places)
        for place, gradient in zip(places, _gradients(hook, ctx, problem, grad_output, wanted), strict=True):
            if place is not None:
                gradients[place] = gradient
        return tuple(gradients)

    return backward


# ---- probe ----


def observed_state(function: type) -> tuple[str, str]:
    """Runs one call of two tokens with grad_output (0, 1) through an autograd Function: (state, reason)."""
    device = probe_device()
    if device is None:
        return "unknown", "no GPU, and TRITON_INTERPRET is not 1: the kernels cannot run here"
    generator = torch.Generator().manual_seed(9)
    hidden = torch.randn(2, 8, generator=generator).to(device).requires_grad_()
    weight = torch.randn(16, 8, generator=generator).to(device).requires_grad_()
    target = torch.tensor([3, 5], device=device)
    parameters = list(inspect.signature(function.forward).parameters.values())[1:]
    given = {"_input": hidden, "weight": weight, "target": target, "reduction": "none"}
    loss = function.apply(*(given.get(p.name, p.default) for p in parameters))
    loss = loss[0] if isinstance(loss, tuple) else loss
    if loss.dim() == 0:
        return "reduction_ignored", "the loss is one number"
    grad_output = torch.tensor([0.0, 1.0], device=device)
    grad_hidden, grad_weight = torch.autograd.grad(loss, (hidden, weight), grad_output)
    rows = grad_hidden.abs().sum(1).tolist()
    if rows == [0.0, 0.0] and grad_weight.abs().sum().item() == 0:
        return "wrong_gradients", "grad_output (0, 1) gave no gradient at all"
    if rows[0] == 0 and rows[1] > 0:
        return "right", "grad_output (0, 1) reached row 1 alone"
    return "unknown", f"rows of grad_hidden sum to {rows}, which is none of the known states"


def masked_mean_state(function: type) -> str:
    """What is wrong with a mean over the one token of two that has a label, with the bug's own blind row first; "" for nothing."""
    generator = torch.Generator().manual_seed(9)
    device = probe_device()
    hidden, weight = (torch.randn(n, 8, generator=generator).to(device).requires_grad_() for n in (2, 16))
    target, factor = torch.tensor([-100, 5], device=device), torch.tensor([0.0, 1.0], device=device)
    parameters = list(inspect.signature(function.forward).parameters.values())[1:]
    given = {"_input": hidden, "weight": weight, "target": target, "reduction": "none"}
    loss = function.apply(*(given.get(p.name, p.default) for p in parameters))
    got = torch.autograd.grad(loss[0] if isinstance(loss, tuple) else loss, (hidden, weight), factor)
    right = torch.autograd.grad(F.cross_entropy(hidden @ weight.T, target), (hidden, weight))
    worst = max((a - b).norm().item() / b.norm().item() for a, b in zip(got, right, strict=True))
    return "" if worst < 1e-2 else f"the gradient of a masked mean is {worst:.1g} off"


# ---- switch ----


class _Liger(Mitigation):
    slug, package, op, keys = SLUG, UPSTREAM, "patchbench::flce", KEYS
    counted = ("op", "plain", APPROXIMATE)
    force_lifts_unknown = True  # without a GPU no probe can run
    is_unequal: torch.Tensor | None = None  # on the GPU: whether mode approximate ever saw what it is not exact for

    def op_note(self, mode: str) -> str:
        if mode == "op" and load_ops():
            raise self.refusal(f"mode op: {load_ops()}; use mode plain, or build the op for this torch")
        return f"mode {mode}" if mode in ("plain", APPROXIMATE) else load_ops()

    def served_by(self, hook: Hook) -> str:
        return "the release's own sum" if hook.mode == APPROXIMATE else super().served_by(hook)

    def status(self) -> dict[str, Any]:
        shown = super().status()
        if shown.get("mode") == APPROXIMATE:
            shown["is_unequal"] = self.is_unequal is not None and bool(self.is_unequal)
        return shown

    def release(self) -> tuple[type, str]:
        return self.installed_class(TARGET, CLASS, ("forward", "backward"))

    def look(self, release: type, version: str) -> Finding:
        both = {name: staticmethod(getattr(release, name)) for name in ("forward", "backward")}
        state, reason = observed_state(type("Upstream" + CLASS, (torch.autograd.Function,), both))
        return Finding(state, version, reason)

    def objection(self, release: type, finding: Finding) -> str:
        impl = os.environ.get("LIGER_KERNEL_IMPL", "triton")
        return "" if impl in ("", "triton") else f"LIGER_KERNEL_IMPL={impl} runs another class than the one this changes"

    def placements(self, release: type, hook: Hook) -> list[Placement]:
        made = {"forward": _forward_for(hook, release.forward), "backward": _backward_for(hook, release.backward)}
        return [Placement(release, name, vars(release)[name], staticmethod(function), f"{CLASS}.{name}") for name, function in made.items()]

    def left(self, release: type, hook: Hook) -> str:
        if hook.mode == APPROXIMATE:
            return masked_mean_state(release) if probe_device() is not None else ""
        state, reason = observed_state(release)
        return "" if state == "right" or probe_device() is None else reason


_own = _Liger()
probe, enable, disable, status = _own.probe, _own.enable, _own.disable, _own.status

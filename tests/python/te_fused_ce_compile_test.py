"""patchbench_ops.cross_entropy: gradients against fp64, gradcheck, opcheck, a full graph, the logits' place, a vocabulary over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops_package import OPS, patchbench_ops
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

IGNORED = -100
REDUCTIONS = ["none", "sum", "mean"]
cross_entropy = patchbench_ops.cross_entropy


@pytest.fixture
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PATCHBENCH_OP_FALLBACK", "te_fused_ce" if request.param == "plain" else "")
    assert patchbench_ops.cross_entropy_path(torch.zeros(1)) == request.param
    return request.param


def operands(dtype: torch.dtype = torch.float32, vocab: int = 40) -> tuple[Tensor, Tensor]:
    """Logits that are a leaf, and labels of which two are ignored."""
    generator = torch.Generator().manual_seed(20)
    logits = torch.randn(3, 4, vocab, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, vocab, (3, 4), generator=generator)
    labels[0, 1] = labels[2, 0] = IGNORED
    return logits, labels


def gradient_like(loss: Tensor) -> Tensor:
    """Other values for each row."""
    return (torch.arange(loss.numel()).view(loss.shape) + 1).to(loss.dtype) / 8


def by_torch(logits: Tensor, labels: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of torch's own function in fp64."""
    wide = logits.detach().double().requires_grad_()
    loss = F.cross_entropy(wide.transpose(1, 2), labels, **options)
    return loss.detach(), torch.autograd.grad(loss, wide, gradient_like(loss))[0]


def is_right(got: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    """To one rounding of the stored dtype, and a few float32 roundings in the sums."""
    return bool((got.double() - wanted).norm() <= (torch.finfo(dtype).eps / 2 + 1e-6 * (dtype != torch.float64)) * wanted.norm() + 1e-14)


@pytest.mark.parametrize("path", ["cpu", "plain"], indirect=True)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_loss_and_gradient_are_those_of_fp64(dtype: torch.dtype, reduction: str, label_smoothing: float, path: str) -> None:
    logits, labels = operands(dtype)
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    loss = cross_entropy(logits, labels, **options)
    (grad,) = torch.autograd.grad(loss, logits, gradient_like(loss))
    wanted, wanted_grad = by_torch(logits, labels, **options)
    assert is_right(loss, wanted, torch.float64 if dtype == torch.float64 else torch.float32)
    assert is_right(grad, wanted_grad, dtype) and grad.dtype == dtype and grad.is_contiguous()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradcheck_in_float64(reduction: str) -> None:
    logits, labels = operands(torch.float64, vocab=5)
    assert torch.autograd.gradcheck(lambda x: cross_entropy(x, labels, reduction=reduction, label_smoothing=0.2), logits)


def test_any_strides_of_logits_labels_and_gradient() -> None:
    logits, labels = operands()
    wanted, wanted_grad = by_torch(logits, labels, reduction="none")
    turned = logits.detach().transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    loss = cross_entropy(turned, labels.t().contiguous().t(), reduction="none")
    (grad,) = torch.autograd.grad(loss, turned, gradient_like(loss).t().contiguous().t())
    assert is_right(loss, wanted, torch.float32) and is_right(grad, wanted_grad, torch.float32)
    expanded = torch.autograd.grad(cross_entropy(logits, labels, reduction="none").sum(), logits)[0]
    assert torch.equal(expanded, torch.autograd.grad(cross_entropy(logits, labels, reduction="sum"), logits)[0])


@pytest.mark.parametrize("path", ["cpu", "plain"], indirect=True)
def test_an_ignored_row_has_no_loss_and_no_gradient(path: str) -> None:
    logits, labels = operands()
    loss = cross_entropy(logits, labels, reduction="none")
    ignored = labels == IGNORED
    (grad,) = torch.autograd.grad(loss, logits, torch.where(ignored, torch.inf, 1.0))
    assert (loss[ignored] == 0).all() and (grad[ignored] == 0).all() and grad.isfinite().all()
    none = torch.full_like(labels, IGNORED)
    mean = cross_entropy(logits, none)
    assert mean.isnan() and (torch.autograd.grad(mean, logits)[0] == 0).all()


def test_opcheck_takes_each_operator() -> None:
    logits, labels = operands()
    options = {"reduction": "none", "label_smoothing": 0.1}
    torch.library.opcheck(OPS.cross_entropy_forward.default, (logits, labels), options)
    bare = logits.detach()
    loss, statistics = OPS.cross_entropy_forward(bare, labels, **options)
    given = (gradient_like(loss), statistics, bare, labels, 0, 40)
    torch.library.opcheck(OPS.cross_entropy_statistics.default, (bare, labels, 3))
    torch.library.opcheck(OPS.cross_entropy_combine.default, (statistics.unsqueeze(0),))
    torch.library.opcheck(OPS.cross_entropy_loss.default, (statistics, labels, 40), options)
    torch.library.opcheck(OPS.cross_entropy_backward.default, given, options)
    torch.library.opcheck(OPS.cross_entropy_backward_.default, given, options)


@pytest.mark.parametrize("overwrites_logits", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_equals_eager_bitwise(dynamic: bool, reduction: str, overwrites_logits: bool) -> None:
    torch.compiler.reset()
    logits, labels = operands(torch.bfloat16)

    def loss_of(x: Tensor, labels: Tensor, **more: Any) -> Tensor:
        return cross_entropy(x, labels, reduction=reduction, label_smoothing=0.1, **more)

    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    wanted, got = loss_of(logits, labels), compiled(logits, labels, overwrites_logits=overwrites_logits)
    before, gradient = logits.detach().clone(), gradient_like(wanted)
    (wanted_grad,) = torch.autograd.grad(wanted, logits, gradient)
    assert torch.equal(got, wanted) and torch.equal(torch.autograd.grad(got, logits, gradient)[0], wanted_grad)
    assert torch.equal(logits, before)  # a compiled graph does not overwrite them


@pytest.mark.parametrize("path", ["cpu", "plain"], indirect=True)
def test_the_gradient_takes_the_place_of_the_logits(path: str) -> None:
    logits, labels = operands(torch.bfloat16)
    (wanted,) = torch.autograd.grad(cross_entropy(logits, labels, reduction="sum"), logits)
    before, version = logits.detach().clone(), logits._version
    loss = cross_entropy(logits, labels, reduction="sum", overwrites_logits=True)
    assert torch.equal(logits, before) and logits._version == version
    (grad,) = torch.autograd.grad(loss, logits)
    assert grad.data_ptr() == logits.data_ptr() and torch.equal(grad, wanted) and logits._version > version


def test_another_reader_of_the_overwritten_logits_raises() -> None:
    leaf, labels = operands()
    logits = leaf * 2
    penalty = logits.square().sum()
    cross_entropy(logits, labels, overwrites_logits=True).backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        penalty.backward()


@pytest.mark.parametrize("more", [{"retain_graph": True}, {"create_graph": True}])
def test_a_kept_graph_refuses_to_overwrite(more: dict[str, bool]) -> None:
    logits, labels = operands()
    before = logits.detach().clone()
    loss = cross_entropy(logits, labels, overwrites_logits=True)
    with pytest.raises(RuntimeError, match="cross_entropy: a graph that is kept for another backward needs the logits"):
        torch.autograd.grad(loss, logits, **more)
    assert torch.equal(logits, before)


def test_a_step_calls_one_operator_each_way() -> None:
    called = []

    class Calls(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
            called.append(operator.name())
            return operator(*args, **(kwargs or {}))

    (logits, labels), weight = operands(), torch.ones(())
    with Calls():
        loss = cross_entropy(logits, labels)
        torch.autograd.grad(loss, logits, weight)
    assert called == ["patchbench::cross_entropy_forward", "patchbench::cross_entropy_backward"]


def test_a_loss_that_gets_no_gradient_gives_none() -> None:
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, loss: Tensor) -> Tensor:
            return loss.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:
            return None

    logits, labels = operands()
    assert torch.autograd.grad(Cut.apply(cross_entropy(logits, labels)), logits, allow_unused=True) == (None,)


def test_several_backwards_of_one_graph() -> None:
    logits, labels = operands()
    loss = cross_entropy(logits, labels, reduction="none")
    first, second = (torch.autograd.grad(loss, logits, gradient_like(loss), retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_a_second_derivative_raises() -> None:
    logits, labels = operands()
    (grad,) = torch.autograd.grad(cross_entropy(logits, labels), logits, create_graph=True)
    with pytest.raises(NotImplementedError, match="cross_entropy_backward has no gradient"):
        torch.autograd.grad(grad.sum(), logits)


def test_the_parts_have_no_gradient() -> None:
    logits, labels = operands()
    with pytest.raises(NotImplementedError, match="cross_entropy_statistics has no gradient"):
        patchbench_ops.cross_entropy_statistics(logits, labels).sum().backward()


@pytest.mark.parametrize("path", ["cpu", "plain"], indirect=True)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_a_vocabulary_over_ranks_is_the_whole_one(label_smoothing: float, path: str) -> None:
    logits, labels = operands(torch.float64)
    options = {"reduction": "mean", "label_smoothing": label_smoothing}
    whole = cross_entropy(logits, labels, **options)
    (wanted,) = torch.autograd.grad(whole, logits)
    parts = [part.contiguous() for part in logits.detach().split(10, 2)]
    each = [patchbench_ops.cross_entropy_statistics(part, labels, 10 * rank) for rank, part in enumerate(parts)]
    both = patchbench_ops.cross_entropy_combine(torch.stack(each))
    loss = patchbench_ops.cross_entropy_loss(both, labels, 40, **options)
    assert (loss - whole).abs() <= 1e-13
    for run in (patchbench_ops.cross_entropy_backward, patchbench_ops.cross_entropy_backward_):
        grads = [run(torch.ones_like(loss), both, part, labels, 10 * rank, 40, **options) for rank, part in enumerate(parts)]
        assert (torch.cat(grads, 2) - wanted).abs().max() <= 1e-14
    assert all(grad is part and part._version > 0 for grad, part in zip(grads, parts, strict=True))


def test_a_rank_of_masked_classes_weighs_nothing() -> None:
    logits, labels = operands(torch.float64, vocab=8)
    x = logits.detach()
    masked = torch.full_like(x, -torch.inf)
    statistics = patchbench_ops.cross_entropy_statistics
    both = patchbench_ops.cross_entropy_combine(torch.stack((statistics(x, labels, 0), statistics(masked, labels, 8))))
    assert torch.equal(both[:3], statistics(x, labels, 0)[:3])


@pytest.mark.parametrize("overwrites_logits", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_gradient(use_reentrant: bool, overwrites_logits: bool) -> None:
    logits, labels = operands()

    def loss_of(x: Tensor, **more: Any) -> Tensor:
        return cross_entropy(x * 2, labels, **more)

    (wanted,) = torch.autograd.grad(loss_of(logits), logits)
    checkpoint(lambda x: loss_of(x, overwrites_logits=overwrites_logits), logits, use_reentrant=use_reentrant).backward()
    assert torch.equal(logits.grad, wanted)


def test_in_inference_mode_the_parts_run() -> None:
    logits, labels = operands()
    with torch.inference_mode():
        loss, statistics = OPS.cross_entropy_forward(logits, labels)
        made = logits.clone()
        patchbench_ops.cross_entropy_backward_(torch.ones_like(loss), statistics, made, labels, 0, 40)
    (wanted,) = torch.autograd.grad(cross_entropy(logits, labels), logits)
    assert torch.equal(made, wanted)


def test_meta_tensors_give_shapes() -> None:
    logits, labels = (x.detach().to("meta") for x in operands(torch.bfloat16))
    for reduction, shape in (("none", (3, 4)), ("sum", ()), ("mean", ())):
        loss, statistics = OPS.cross_entropy_forward(logits, labels, reduction=reduction)
        assert loss.shape == shape and loss.dtype == statistics.dtype == torch.float32 and statistics.shape == (4, 3, 4)
        grad = patchbench_ops.cross_entropy_backward(loss, statistics, logits, labels, 0, 40, reduction=reduction)
        assert grad.shape == logits.shape and grad.dtype == torch.bfloat16


WRONG: list[tuple[Callable[[Tensor, Tensor], Any], type[Exception], str]] = [
    (lambda x, y: cross_entropy(x[0], y), RuntimeError, r"logits must have 3 axes \[b, s, v\], got 2"),
    (lambda x, y: cross_entropy(x, y.t()), RuntimeError, r"labels must have shape \[3, 4\], got \[4, 3\]"),
    (lambda x, y: cross_entropy(x, y.int()), RuntimeError, "labels must have dtype int64, got int32"),
    (lambda x, y: cross_entropy(x.int(), y), RuntimeError, "logits must have dtype float32, float16, bfloat16 or float64, got int32"),
    (lambda x, y: cross_entropy(x[..., :0], y), RuntimeError, "logits must have at least 1 class, got 0"),
    (lambda x, y: cross_entropy(x, y, reduction="max"), RuntimeError, "reduction must be none, mean or sum, got max"),
    (lambda x, y: cross_entropy(x, y, label_smoothing=2), RuntimeError, r"label_smoothing must lie in \[0, 1\], got 2"),
    (lambda x, y: cross_entropy(x, y, ignore_index=2**60), RuntimeError, r"ignore_index must lie in \[-2\^53, 2\^53\]"),
    (lambda x, y: cross_entropy(x, y, ignore_index=-1), IndexError, r"labels\[0, 1\] must lie in \[0, 40\) or be ignore_index -1, got"),
    (lambda x, y: cross_entropy(x[..., ::2], y, overwrites_logits=True), RuntimeError, "logits must be contiguous to be overwritten"),
]


@pytest.mark.parametrize(("call", "error", "text"), WRONG, ids=[text for *_, text in WRONG])
def test_a_wrong_argument_is_named(call: Callable[[Tensor, Tensor], Any], error: type[Exception], text: str) -> None:
    logits, labels = operands()
    with pytest.raises(error, match="cross_entropy: " + text):
        call(logits, labels)

"""Of TransformerEngine's cross entropy: where logits, labels and gradients lie, and which labels count."""

from __future__ import annotations

from typing import Any

from patchbench_mitigations.conditions import differs_by_row, is_part, of_values

CLASS = "transformer_engine.pytorch.cross_entropy.CrossEntropyFunction"


def _is_transposed(tensor: Any) -> bool:
    return tensor.dim() > 1 and not tensor.is_contiguous() and tensor.transpose(0, 1).is_contiguous()


def _is_sliced(tensor: Any, num_inner: int) -> bool:
    """Whether the rows of a tensor whose rows hold `num_inner` elements are parts of longer ones, one behind the other."""
    if tensor.is_contiguous() or tensor.dim() < 2:
        return False
    strides, shape = tensor.stride(), tensor.shape
    return shape[0] > 1 and strides[1] == num_inner and strides[0] > shape[1] * num_inner


def transposed_view(inp: Any = None, _input: Any = None) -> bool:
    """The strides of the logits: the first two axes are exchanged."""
    return _is_transposed(_input if inp is None else inp)


def sliced_sequence(inp: Any = None, _input: Any = None) -> bool:
    """The strides of the logits: a part of a longer sequence, with more than one batch entry."""
    logits = _input if inp is None else inp
    return not logits.is_contiguous() and _is_sliced(logits, logits.shape[-1])


def sliced_labels(target: Any) -> bool:
    """The strides of the labels: a part of a longer sequence, with more than one batch entry."""
    return _is_sliced(target, 1)


def ignore_index_raises(ignore_idx: int) -> bool:
    """The argument ignore_idx is another than -100."""
    return ignore_idx != -100


@of_values
def ignored_labels(target: Any, reduce_loss: bool, ignore_idx: int = -100) -> Any:
    """The argument reduce_loss and the labels: the mean is asked for, and a label is ignored."""
    return reduce_loss and (target == ignore_idx).any()


@is_part
def target_gradient_rounded(inp: Any = None, _input: Any = None) -> bool:
    """The dtype of the logits: bfloat16 or float16; not how confident the model is."""
    return (_input if inp is None else inp).element_size() == 2


def sum_scaled(grad_output: Any) -> bool:
    """The shape of the gradients of the losses: one loss a token."""
    return grad_output.dim() > 0


def out_of_bounds_read(grad_output: Any) -> bool:
    """The strides of the gradients of the losses: stored once for all tokens."""
    return grad_output.numel() > 1 and not any(grad_output.stride())


def storage_order_gradient(grad_output: Any) -> bool:
    """The strides of the gradients of the losses: the first two axes are exchanged."""
    return _is_transposed(grad_output)


@of_values
def row_zero_gradient(grad_output: Any) -> Any:
    """The gradients of the losses, in backward: they differ from token to token."""
    return differs_by_row(grad_output)


FORWARD = (transposed_view, sliced_sequence, sliced_labels, ignore_index_raises, ignored_labels, target_gradient_rounded)
BACKWARD = (sum_scaled, out_of_bounds_read, storage_order_gradient, row_zero_gradient)
CALLS = {
    f"{CLASS}.forward": {condition.__name__: condition for condition in FORWARD},
    f"{CLASS}.backward": {condition.__name__: condition for condition in BACKWARD},
}

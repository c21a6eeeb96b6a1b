import pytest
import torch
from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss
from liger_kernel.utils import infer_device

device = infer_device()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("trained", [("weight",), ("bias",), ("weight", "bias")])
def test_head_is_trained_over_frozen_input(reduction, trained):
    torch.manual_seed(42)
    head = torch.nn.Linear(32, 200, device=device)
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(name in trained)
    hidden = torch.randn(64, 32, device=device)
    target = torch.randint(0, 200, (64,), device=device)

    loss = LigerFusedLinearCrossEntropyLoss(reduction=reduction)(head.weight, hidden, target, head.bias)
    expected_loss = torch.nn.functional.cross_entropy(head(hidden), target, reduction=reduction)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-5, atol=1e-5)

    parameters = [getattr(head, name) for name in trained]
    expected = torch.autograd.grad(expected_loss, parameters)
    loss.backward()
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)

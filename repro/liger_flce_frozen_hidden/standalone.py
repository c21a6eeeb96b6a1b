"""The gradient of a trained head over a frozen trunk, by liger-kernel's fused linear cross entropy, compared with torch in float64.

Needs: liger-kernel, torch and a GPU (or TRITON_INTERPRET=1 on a CPU). Exit: 0 right, 1 wrong, 2 cannot say.
"""

import inspect
import sys

import torch

try:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Fused
except ImportError as error:
    print(f"cannot say: {error}; pip install liger-kernel==0.8.5", file=sys.stderr)
    sys.exit(2)

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
hidden = torch.randn(64, 32, device=device)  # of a frozen trunk: it wants no gradient
weight = torch.randn(200, 32, device=device, requires_grad=True)
target = torch.randint(0, 200, (64,), device=device)

wide = weight.detach().double().requires_grad_()
wanted_loss = torch.nn.functional.cross_entropy(hidden.double() @ wide.T, target)
wanted_loss.backward()

arguments = {"_input": hidden, "weight": weight, "target": target, "reduction": "mean"}
parameters = list(inspect.signature(Fused.forward).parameters.values())[1:]
try:
    loss = Fused.apply(*(arguments.get(p.name, p.default) for p in parameters))
except UnboundLocalError as error:
    print(f"WRONG: forward raises: {error}")
    sys.exit(1)
loss = loss[0] if isinstance(loss, tuple) else loss
loss.backward()

print(f"loss: {loss.item():.6f}, in float64 {wanted_loss.item():.6f}")
if weight.grad is None:
    print("WRONG: weight.grad is None after backward; an optimizer skips the head without a word")
    sys.exit(1)
error = ((weight.grad - wide.grad).abs().max() / wide.grad.abs().max()).item()
print(f"grad_weight: largest deviation from float64, relative to the largest element: {error:.2e}")
print("WRONG" if error > 1e-3 else "right")
sys.exit(error > 1e-3)

"""Gradients of liger-kernel's fused linear cross entropy with reduction="none", against torch in float64.

Needs: liger-kernel, torch and a GPU (or TRITON_INTERPRET=1 on a CPU). Exit: 0 right, 1 wrong, 2 cannot say.
"""

import inspect
import sys

import torch

try:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction as Fused
except ImportError as error:
    print(f"cannot say: {error}; pip install liger-kernel==0.8.0", file=sys.stderr)
    sys.exit(2)

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
hidden = torch.randn(64, 32, device=device, requires_grad=True)
weight = torch.randn(200, 32, device=device, requires_grad=True)
target = torch.randint(0, 200, (64,), device=device)
grad_loss = torch.rand(64, device=device) + 0.5  # one factor a token: uniform ones hide it

wide = [t.detach().double().requires_grad_() for t in (hidden, weight)]
loss = torch.nn.functional.cross_entropy(wide[0] @ wide[1].T, target, reduction="none")
wanted = torch.autograd.grad(loss, wide, grad_loss.double())

arguments = {"_input": hidden, "weight": weight, "target": target, "reduction": "none"}
parameters = list(inspect.signature(Fused.forward).parameters.values())[1:]
got_loss = Fused.apply(*(arguments.get(p.name, p.default) for p in parameters))
got_loss = got_loss[0] if isinstance(got_loss, tuple) else got_loss
if got_loss.shape != grad_loss.shape:
    sys.exit(f"WRONG: the loss has shape {list(got_loss.shape)}, not one value a token")
got = torch.autograd.grad(got_loss, (hidden, weight), grad_loss)

errors = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, wanted, strict=True)]
for name, error in zip(("grad_hidden", "grad_weight"), errors, strict=True):
    print(f"{name}: largest deviation from float64, relative to the largest element: {error:.2e}")
print("WRONG" if max(errors) > 1e-3 else "right")
sys.exit(max(errors) > 1e-3)

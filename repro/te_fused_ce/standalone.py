"""Which defects the installed TransformerEngine's fused cross entropy has, against torch in float64.

Needs: transformer-engine with its compiled extension, torch and a GPU. Exit: 0 all right, 1 something is wrong, 2 cannot say.
"""

import sys

import torch

try:
    from transformer_engine.pytorch.cross_entropy import CrossEntropyFunction as Fused
except ImportError as error:
    print(f"cannot say: {error}; pip install transformer-engine[pytorch]==2.10.0", file=sys.stderr)
    sys.exit(2)

device = "cuda" if torch.cuda.is_available() else "cpu"
half = torch.bfloat16 if device == "cuda" else torch.float16  # Triton's CPU interpreter truncates bfloat16
torch.manual_seed(1)
batch, seqlen, vocab = 2, 6, 40
x = torch.randn(batch, seqlen, vocab, device=device)
y = torch.randint(0, vocab, (batch, seqlen), device=device)
weights = torch.rand(batch, seqlen, device=device) + 0.5
mask = (torch.rand(batch, seqlen, device=device) > 0.4).float().index_fill(1, torch.tensor([0], device=device), 0.0)
even = torch.ones_like(weights)
one = torch.ones((), device=device)
# The first of 64 values: what is read past it is 9, not the memory of somebody else.
expanded = torch.tensor([1.0] + [9.0] * 63, device=device)[0].expand(batch, seqlen)
# With room behind it: a release is known to write there.
room = torch.zeros(4 * x.numel(), device=device)
transposed = room[: x.numel()].view(seqlen, batch, vocab).copy_(x.transpose(0, 1)).transpose(0, 1)
longer = torch.cat([x, torch.randn_like(x[:, :1])], 1)
labels_of_longer = torch.cat([torch.zeros_like(y[:, :1]), y], 1)
confident = x.scatter_add(2, y.unsqueeze(2), torch.full_like(x[..., :1], 10.0)).to(half)

CALLS = {
    "a weight for each token": (x, y, weights, False),
    "a mask whose first token is off": (x, y, mask, False),
    "loss.sum(), its gradient stored once": (x, y, expanded, False),
    "loss.sum(), its gradient stored for each token": (x, y, even, False),
    "a gradient with its axes transposed, as Megatron-LM hands it over": (x, y, weights.t().contiguous().t(), False),
    "the mean with ignored labels": (x, y.masked_fill(y % 3 == 0, -100), one, True),
    "logits that are a transposed view": (transposed, y, even, False),
    "logits[:, :-1]": (longer[:, :-1], y, even, False),
    "labels[:, 1:]": (x, labels_of_longer[:, 1:], even, False),
    "confident logits in 16 bits": (confident, y, even, False),
}


def off(logits: torch.Tensor, labels: torch.Tensor, grad_loss: torch.Tensor, is_mean: bool) -> tuple[float, float, bool]:
    """Largest deviation of loss and gradient, relative to the largest element, and whether the logits were overwritten."""
    wide = logits.double().contiguous().requires_grad_()
    right = torch.nn.functional.cross_entropy(wide.flatten(0, 1), labels.flatten(), reduction="mean" if is_mean else "none")
    (right_grad,) = torch.autograd.grad(right, wide, grad_loss.double().reshape(right.shape))
    before, leaf = logits.clone(), logits.detach().requires_grad_()
    loss = Fused.apply(leaf, labels, 0.0, is_mean, None)
    is_overwritten = not torch.equal(before, leaf.detach())
    (grad,) = torch.autograd.grad(loss, leaf, grad_loss if loss.shape == grad_loss.shape else grad_loss.reshape(loss.shape))
    pairs = ((loss.detach().reshape(right.shape), right.detach()), (grad, right_grad))
    loss_off, grad_off = (((got.double() - want).abs().max() / want.abs().max()).item() for got, want in pairs)
    return loss_off, grad_off, is_overwritten


num_wrong = 0
for name, call in CALLS.items():
    try:
        loss_off, grad_off, is_overwritten = off(*call)
    except Exception as error:
        print(f"RAISES  {name}: {type(error).__name__}: {str(error).splitlines()[0][:80]}")
        num_wrong += 1
        continue
    is_wrong = not max(loss_off, grad_off) < 2e-2
    num_wrong += is_wrong
    note = "; the logits are overwritten in forward" if is_overwritten else ""
    print(f"{'WRONG ' if is_wrong else 'right '}  {name}: loss {loss_off:.0e}, gradient {grad_off:.0e} off float64{note}")
print(f"WRONG: {num_wrong} of {len(CALLS)} calls" if num_wrong else f"right: all {len(CALLS)} calls")
sys.exit(num_wrong > 0)

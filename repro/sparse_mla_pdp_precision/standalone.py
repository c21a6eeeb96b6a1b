"""The gradient of the query by megatron-core's sparse MLA where the keys share a mean, against torch in float64.

Needs: megatron-core, tilelang, torch and a GPU of sm_90. Exit: 0 within 1e-2 of the largest element, 1 not, 2 cannot
say.
"""

import os
import sys

os.environ["MCORE_DSA_TILELANG_SEQ_BUCKET"] = "1"  # rows and keys are otherwise padded to 256

import torch  # noqa: E402

try:
    from megatron.core.transformer.experimental_attention_variant.ops.sparse_mla import SparseMLA
except ImportError as error:
    print(f"cannot say: {error}; pip install megatron-core==0.19.2", file=sys.stderr)
    sys.exit(2)
if SparseMLA is None:
    print("cannot say: without TileLang there is no such kernel; pip install tilelang", file=sys.stderr)
    sys.exit(2)

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1)
rows, keys, heads, d, d_v, topk = 4, 512, 16, 576, 512, 256


def gradient(mean: float) -> float:
    """The largest deviation of grad_q from float64, relative to its largest element; `mean` is that of every key."""
    q = torch.randn(rows, heads, d).bfloat16().to(device).requires_grad_()
    kv = (torch.randn(keys, 1, d) + mean).bfloat16().to(device).requires_grad_()
    indices = torch.stack([torch.randperm(keys)[:topk] for _ in range(rows)]).int().to(device)
    grad_out = torch.randn(rows, heads, d_v).bfloat16().to(device)
    out, _ = SparseMLA.apply(q, kv, indices.unsqueeze(1), d**-0.5)
    (got,) = torch.autograd.grad(out, q, grad_out)

    wide = q.detach().double().requires_grad_()
    chosen = kv.detach().double()[indices.long(), 0]
    weights = torch.einsum("shd,skd->shk", wide, chosen).mul(d**-0.5).softmax(-1)
    (wanted,) = torch.autograd.grad(torch.einsum("shk,skd->shd", weights, chosen[..., :d_v]), wide, grad_out.double())
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


errors = {mean: gradient(mean) for mean in (0.0, 4.0)}
for mean, error in errors.items():
    print(f"keys with a mean of {mean}: grad_q deviates from float64 by {error:.2e} of its largest element")
if errors[0.0] > 1e-2:
    print("cannot say: it is off where the keys share no mean, too", file=sys.stderr)
    sys.exit(2)
print("WRONG: a mean of the keys cancels in exact arithmetic" if errors[4.0] > 1e-2 else "right")
sys.exit(errors[4.0] > 1e-2)

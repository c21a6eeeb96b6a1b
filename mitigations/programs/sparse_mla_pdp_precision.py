"""Trains the queries of Megatron-LM's TileLang sparse attention on keys that share a mean; without a GPU its kernels run as written.

The error is that of the trained query against float64, relative to the step's largest element.
"""

import json
import os

os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
os.environ["MCORE_DSA_TILELANG_SEQ_BUCKET"] = "1"  # rows and keys are otherwise padded to 256
import torch  # noqa: E402

if not torch.cuda.is_available():
    import stand_in

    stand_in.install()
from megatron.core.transformer.experimental_attention_variant.ops.sparse_mla import SparseMLA  # noqa: E402

torch.manual_seed(0)
device, heads, keys, d, d_v, rate = "cuda" if torch.cuda.is_available() else "cpu", 16, 64, 576, 512, 0.5
q = torch.nn.Parameter(torch.randn(2, heads, d).bfloat16().to(device))
kv, grad_out = (torch.randn(keys, 1, d) + 4).bfloat16().to(device), torch.randn(2, heads, d_v).bfloat16().to(device)
indices = torch.stack([torch.randperm(keys)[:64] for _ in range(2)]).int().to(device)
wide = q.detach().double().requires_grad_()
weights = torch.einsum("shd,skd->shk", wide, kv.double()[indices.long(), 0]).mul(d**-0.5).softmax(-1)
right = torch.einsum("shk,skd->shd", weights, kv.double()[indices.long(), 0][..., :d_v])
(step,) = torch.autograd.grad(right, wide, grad_out.double())
out, _ = SparseMLA.apply(q, kv.requires_grad_(), indices.unsqueeze(1), d**-0.5)
out.backward(grad_out)
print(json.dumps({"error": ((q.grad.double() - step).abs().max() / step.abs().max()).item(), "bound": 2e-2}))

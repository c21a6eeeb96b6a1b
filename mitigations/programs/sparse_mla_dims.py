"""Trains Megatron-LM's fused sparse attention with heads of 192 and 128 columns, over the pack's stand-in for its kernels.

The error is the relative difference of a trained weight from plain torch; 1 where the release declines and a dense path would compute.
"""

import importlib
import json
from types import SimpleNamespace

import stand_in
import torch

stand_in.install()
VARIANT = "megatron.core.transformer.experimental_attention_variant"
kernels = importlib.import_module(f"{VARIANT}.dsa_kernels")
modules = [importlib.import_module(f"{VARIANT}.ops.tilelang_sparse_mla_{half}") for half in ("fwd", "bwd")]
config, device = SimpleNamespace(dsa_kernel_backend="tilelang"), "cuda" if torch.cuda.is_available() else "cpu"
SEQLEN, HEADS, D, DV = 64, 16, 192, 128
is_key = torch.ones(SEQLEN, SEQLEN, dtype=torch.bool, device=device).tril()
indices = torch.arange(SEQLEN, device=device).expand(1, SEQLEN, SEQLEN).masked_fill(~is_key, -1)


def plain(_: object, query: torch.Tensor, key: torch.Tensor, *__: object) -> torch.Tensor:
    scores = (torch.einsum("sbhd,tbgd->bhst", query.float(), key.float()) * D**-0.5).masked_fill(~is_key, -torch.inf)
    return torch.einsum("bhst,tbgd->sbhd", scores.softmax(-1), key[..., :DV].float())


def trained(attention) -> torch.Tensor:  # noqa: ANN001
    torch.manual_seed(0)
    layer, hidden = torch.nn.Linear(D, D).to(device), torch.randn(SEQLEN, 1, HEADS + 1, D).to(device)
    out = attention(config, *layer(hidden).bfloat16().split([HEADS, 1], 2), indices, D**-0.5, DV)
    if out is not None:
        out.float().square().mean().backward()
        torch.optim.SGD(layer.parameters(), lr=100.0).step()
    return layer.weight.detach()


with stand_in.serving(device, *modules):
    got, right, start = map(trained, (kernels.run_fused_absorbed_sparse_attention, plain, lambda *_: None))
print(json.dumps({"error": ((got - right).norm() / (right - start).norm()).item(), "bound": 2e-2}))

"""Trains Megatron-LM's unfused sparse attention with rows that have fewer keys than slots (-1), and captures its packed positions.

Without a GPU the capture is one of fake CUDA tensors. The error is the difference from plain torch; 1 where -1 or the capture is refused.
"""

import json
import os
from unittest import mock

os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")  # some releases ask for it when imported, and raise without a GPU
import torch
from megatron.core.transformer.experimental_attention_variant import dsa
from torch._subclasses.fake_tensor import FakeTensorMode

SEQLEN, DIM = 6, 8
indices = torch.tensor([[[i - j if j <= i else -1 for j in range(3)] for i in range(SEQLEN)]])
is_chosen = torch.tensor([[i - 3 < j <= i for j in range(SEQLEN)] for i in range(SEQLEN)])


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: object) -> torch.Tensor:
    scores = torch.einsum("sbhd,tbhd->bhst", query, key) * DIM**-0.5
    return torch.einsum("bhst,tbhd->sbhd", scores.masked_fill(~is_chosen, -torch.inf).softmax(-1), value).flatten(2)


def trained(attention) -> torch.Tensor:  # noqa: ANN001
    torch.manual_seed(0)
    layer, hidden = torch.nn.Linear(DIM, 3 * 2 * DIM), torch.randn(SEQLEN, 1, DIM)
    attention(*layer(hidden).unflatten(-1, (2, 3 * DIM)).chunk(3, -1), indices, DIM**-0.5).square().mean().backward()
    return layer.weight.detach() - layer.weight.grad


try:
    error = ((trained(dsa.unfused_dsa_fn) - (right := trained(plain))).abs().max() / right.abs().max()).item()
    with FakeTensorMode(), mock.patch("torch.cuda.is_current_stream_capturing", lambda: True):
        bounds = torch.empty(5, dtype=torch.int32, device="cuda")
        if hasattr(dsa, "dsa_layout"):
            dsa.dsa_layout.build_packed_allgather_cp_local_positions(bounds, 2, 1, bounds.device, 14)
except RuntimeError:  # an index out of bounds; a read of the device
    error = 1.0
print(json.dumps({"error": error, "bound": 1e-4}))

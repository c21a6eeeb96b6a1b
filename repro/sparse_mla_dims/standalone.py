"""Which head shapes megatron-core's sparse MLA hands to its fused kernels; every other gets the dense path.

Needs: megatron-core, tilelang and torch, no GPU: no kernel is launched. Exit: 0 all are handed over, 1 one is not, 2
cannot say.
"""

import sys

import torch

try:
    from megatron.core.transformer.experimental_attention_variant.ops import tilelang_dsa
except ImportError as error:
    print(f"cannot say: {error}; pip install megatron-core==0.19.2", file=sys.stderr)
    sys.exit(2)
if tilelang_dsa.SparseMLA is None:
    print("cannot say: without TileLang every shape is declined; pip install tilelang", file=sys.stderr)
    sys.exit(2)


class Kernels:
    """Takes the place of the fused kernels."""

    @staticmethod
    def apply(q: torch.Tensor, *_: object) -> tuple[torch.Tensor, None]:
        return q.new_zeros(*q.shape[:-1], width), None


tilelang_dsa.SparseMLA = Kernels
declined = []
for head_dim, width in ((576, 512), (512, 512), (192, 128)):
    query, key = (torch.zeros(64, 1, heads, head_dim, dtype=torch.bfloat16) for heads in (64, 1))
    topk = torch.zeros(1, 64, 64, dtype=torch.int64)
    out = tilelang_dsa.fused_sparse_mla_absorbed(query, key, topk, head_dim**-0.5, width)
    print(f"head_dim_qk {head_dim}, head_dim_v {width}: {'declined' if out is None else 'taken'}")
    if out is None:
        declined.append(head_dim)
if 576 in declined:
    print("cannot say: the shape that the kernels were written for is declined, too", file=sys.stderr)
    sys.exit(2)
print("WRONG: what is declined holds [batch, num_heads, seqlen_q, seqlen_k] in fp32" if declined else "right")
sys.exit(bool(declined))

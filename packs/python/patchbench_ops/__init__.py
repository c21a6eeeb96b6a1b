"""The corrected ops of Patchbench: CPU and CUDA, one library for torch 2.11 and later.

Every function says in its docstring what it computes, shapes and dtypes, errors, determinism and source. All run on the current
stream and device, and compile into a full graph.
"""

from . import library

library.load()

from .cross_entropy import (  # noqa: E402  (names operators of the library)
    cross_entropy,
    cross_entropy_backward,
    cross_entropy_backward_,
    cross_entropy_combine,
    cross_entropy_loss,
    cross_entropy_path,
    cross_entropy_statistics,
)
from .fp8 import (  # noqa: E402  (names operators of the library)
    dequantize_mla,
    quantize_mla,
    sparse_mla_fp8,
    sparse_mla_fp8_backward,
    sparse_mla_fp8_forward,
    sparse_mla_fp8_path,
)
from .mask import topk_to_index_mask, topk_to_index_mask_, topk_to_index_mask_path  # noqa: E402  (names operators of the library)
from .mimo import group_reduce_bwd, mamba3_mimo_bwd, mamba3_mimo_qk_dot  # noqa: E402
from .siso import mamba3_siso, mamba3_siso_bwd, mamba3_siso_gate_bwd, mamba3_siso_rotary_bwd  # noqa: E402
from .sparse_mla import sparse_mla, sparse_mla_path  # noqa: E402

__version__ = "0.2.0"
__all__ = [
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_backward_",
    "cross_entropy_combine",
    "cross_entropy_loss",
    "cross_entropy_path",
    "cross_entropy_statistics",
    "dequantize_mla",
    "group_reduce_bwd",
    "mamba3_mimo_bwd",
    "mamba3_mimo_qk_dot",
    "mamba3_siso",
    "mamba3_siso_bwd",
    "mamba3_siso_gate_bwd",
    "mamba3_siso_rotary_bwd",
    "quantize_mla",
    "sparse_mla",
    "sparse_mla_fp8",
    "sparse_mla_fp8_backward",
    "sparse_mla_fp8_forward",
    "sparse_mla_fp8_path",
    "sparse_mla_path",
    "topk_to_index_mask",
    "topk_to_index_mask_",
    "topk_to_index_mask_path",
]

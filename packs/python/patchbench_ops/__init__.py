"""The corrected ops of Patchbench: CPU and CUDA, one library for torch 2.11 and later.

Every function says in its docstring what it computes, shapes and dtypes, errors, determinism and source. All run on the current
stream and device, and compile into a full graph.
"""

from . import library

library.load()

from .mask import topk_to_index_mask, topk_to_index_mask_, topk_to_index_mask_path  # noqa: E402  (names operators of the library)
from .sparse_mla import sparse_mla, sparse_mla_path  # noqa: E402

__version__ = "0.1.0"
__all__ = ["sparse_mla", "sparse_mla_path", "topk_to_index_mask", "topk_to_index_mask_", "topk_to_index_mask_path"]

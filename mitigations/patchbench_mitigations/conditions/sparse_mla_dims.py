"""Of Megatron-LM's fused sparse attention: how wide the heads are."""

from __future__ import annotations

from typing import Any

FUNCTION = "megatron.core.transformer.experimental_attention_variant.dsa_kernels.run_fused_absorbed_sparse_attention"


def shape_declined(query: Any, v_channels: int) -> bool:
    """The shape of the query and the argument v_channels: other than 576 and 512."""
    return (query.shape[-1], v_channels) != (576, 512)


CALLS = {FUNCTION: {"shape_declined": shape_declined}}

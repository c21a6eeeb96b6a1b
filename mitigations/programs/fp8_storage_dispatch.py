"""Hands TransformerEngine's FP8 tensors to Megatron-LM's sparse attention, and dequantises them by name once they are refused.

Over the pack's stand-in, whose recorder takes the place of the kernel. The error is the share of the steps that took the FP8 tensor
without a word: the kernel is then given a dense copy of twice its bytes, or a null pointer.
"""

import importlib
import json
import os
from types import SimpleNamespace

os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
import stand_in  # noqa: E402
import torch  # noqa: E402

stand_in.install()
kernels = importlib.import_module(f"{stand_in.VARIANT}.dsa_kernels")
wrapper = importlib.import_module("transformer_engine.pytorch.tensor.float8_tensor").Float8Tensor
device = "cuda" if torch.cuda.is_available() else "cpu"
config, taken = SimpleNamespace(dsa_kernel_backend="tilelang"), []


def stored(value: torch.Tensor) -> torch.Tensor:
    words = {"data": value.to(torch.float8_e4m3fn).view(torch.uint8), "fp8_scale_inv": torch.ones(1, device=device)}
    kinds = {"dtype": torch.bfloat16, "fp8_dtype": stand_in.DType.kFloat8E4M3, "quantizer": None, "device": device}
    return wrapper(shape=value.shape, **words, **kinds)


with stand_in.recording(lambda q, kv, _: taken.append(is_stored)), stand_in.on_this_device(device):
    for step in range(3):
        torch.manual_seed(step)
        query, key = (torch.randn(64, 1, heads, 576).bfloat16().to(device) for heads in (16, 1))
        indices = torch.arange(64, device=device).expand(1, 64, 64).contiguous()
        try:
            is_stored = True
            kernels.run_fused_absorbed_sparse_attention(config, query, stored(key), indices, 576**-0.5, 512)
        except TypeError:
            is_stored = False
            kernels.run_fused_absorbed_sparse_attention(config, query, key, indices, 576**-0.5, 512)
print(json.dumps({"error": sum(taken) / len(taken), "bound": 0.0}))

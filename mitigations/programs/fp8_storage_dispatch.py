"""Hands a TransformerEngine FP8 tensor to Megatron-LM's sparse attention, as an FP8 checkpoint does, and trains on if it is refused.

Over the pack's stand-in, whose recorder takes the place of the kernel. The error is the share of the steps in which the kernel was given a
tensor that calls itself bfloat16 and has no data.
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
config, given = SimpleNamespace(dsa_kernel_backend="tilelang"), []


def stored(value: torch.Tensor) -> torch.Tensor:
    words = {"data": value.to(torch.float8_e4m3fn).view(torch.uint8), "fp8_scale_inv": torch.ones(1, device=device)}
    kinds = {"dtype": torch.bfloat16, "fp8_dtype": stand_in.DType.kFloat8E4M3, "quantizer": None, "device": device}
    return wrapper(shape=value.shape, **words, **kinds)


with stand_in.recording(lambda q, kv, _: given.append(0 in (q.data_ptr(), kv.data_ptr()))), stand_in.on_this_device(device):
    for step in range(3):
        torch.manual_seed(step)
        query, key = (torch.randn(64, 1, heads, 576).bfloat16().to(device) for heads in (16, 1))
        indices = torch.arange(64, device=device).expand(1, 64, 64).contiguous()
        try:
            kernels.run_fused_absorbed_sparse_attention(config, query, stored(key), indices, 576**-0.5, 512)
        except TypeError:
            kernels.run_fused_absorbed_sparse_attention(config, query, key, indices, 576**-0.5, 512)
print(json.dumps({"error": sum(given) / 3, "bound": 0.0}))

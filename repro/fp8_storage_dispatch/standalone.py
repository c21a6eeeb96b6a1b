"""What TransformerEngine's FP8 tensors tell a consumer that takes pointers: bfloat16, and null.

Needs: transformer-engine and torch, on whatever device it runs on. Exit: 0 refused or told, 1 null under the name of
bfloat16, 2 cannot say.
"""

import sys

import torch

try:
    import transformer_engine_torch as extension
    from transformer_engine.pytorch.tensor.float8_tensor import Float8Tensor
except ImportError as error:
    print(f"cannot say: {error}; pip install transformer-engine[pytorch]==2.20.2", file=sys.stderr)
    sys.exit(2)

device = "cuda" if torch.cuda.is_available() else "cpu"
payload = torch.full((64, 64), 0x38, dtype=torch.uint8, device=device)  # 0x38 is 1.0 in e4m3
wrapper = Float8Tensor(
    shape=payload.shape,
    dtype=torch.bfloat16,
    data=payload,
    fp8_scale_inv=torch.ones(1, device=device),
    fp8_dtype=extension.DType.kFloat8E4M3,
    quantizer=None,
    device=payload.device,
)
try:
    pointers = {"the wrapper": wrapper.data_ptr(), "contiguous()": wrapper.contiguous().data_ptr()}
except Exception as error:
    print(f"right: a raw pointer is refused, {type(error).__name__}: {error}")
    sys.exit(0)
for name, pointer in pointers.items():
    print(f"{name}: dtype {wrapper.dtype}, {wrapper.numel()} elements, data_ptr {pointer:#x}")
is_null = wrapper.dtype == torch.bfloat16 and 0 in pointers.values()
print("WRONG: a kernel that takes pointers is given null" if is_null else "right")
sys.exit(is_null)

import torch
import transformer_engine_torch as tex
from transformer_engine.pytorch.tensor.float8_tensor import Float8Tensor

device = "cuda" if torch.cuda.is_available() else "cpu"
data = torch.full((64, 64), 0x38, dtype=torch.uint8, device=device)  # 1.0 in e4m3
scale = torch.ones(1, device=device)
options = {"fp8_dtype": tex.DType.kFloat8E4M3, "quantizer": None, "device": data.device}
fp8 = Float8Tensor(shape=data.shape, dtype=torch.bfloat16, data=data, fp8_scale_inv=scale, **options)
print(f"is a torch.Tensor: {isinstance(fp8, torch.Tensor)}, {fp8.dtype}, {fp8.numel()} elements")
print(f"data_ptr of the tensor: {fp8.data_ptr():#x}")
print(f"its bytes are at a pointer that is not null: {fp8._data.data_ptr() != 0}")

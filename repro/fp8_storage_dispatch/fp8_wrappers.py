"""TransformerEngine's quantised tensors: made by the release's own constructors, and looked at without a read of their data."""

from __future__ import annotations

import ctypes
import importlib
import inspect
from typing import Any

import stand_in
import torch
from subject_runtime import Case

VERSIONED_DATA_OFFSET = 32


def tensor_module(name: str) -> Any:
    """A module of the release's tensor package."""
    return importlib.import_module(f"transformer_engine.pytorch.tensor.{name}".rstrip("."))


def is_wrapper(value: Any) -> bool:
    """Whether the value is one of TransformerEngine's quantised tensors; touches neither its data nor its pointer."""
    return isinstance(value, tensor_module("").QuantizedTensor)


def quantizer_of(storage: str, scale_inv: torch.Tensor) -> Any:
    """What makes such wrappers in the release."""
    if storage == "mxfp8":
        return tensor_module("mxfp8_tensor").MXFP8Quantizer(stand_in.DType.kFloat8E4M3)
    scale = 1 / scale_inv
    return tensor_module("float8_tensor").Float8Quantizer(scale, torch.zeros_like(scale), stand_in.DType.kFloat8E4M3)


def make_wrapper(storage: str, payload: torch.Tensor, scale_inv: torch.Tensor, quantizer: Any = None) -> torch.Tensor:
    """A wrapper that says bf16 around e4m3 bytes of the same shape, made by the release's own constructor."""
    words: dict[str, Any] = {"shape": payload.shape, "dtype": torch.bfloat16, "fp8_dtype": stand_in.DType.kFloat8E4M3}
    words["quantizer"] = quantizer
    if storage == "mxfp8":
        kind = tensor_module("mxfp8_tensor").MXFP8Tensor
        words |= {"rowwise_data": payload, "rowwise_scale_inv": scale_inv}
        words |= {"columnwise_data": None, "columnwise_scale_inv": None}
    else:
        kind = tensor_module("float8_tensor").Float8Tensor
        by_column = storage == "float8_columnwise_only"
        words |= {"data": None if by_column else payload, "fp8_scale_inv": scale_inv}
        words |= {"data_transpose": payload.movedim(-1, 0).contiguous() if by_column else None}
    optional = {"device": payload.device, "with_gemm_swizzled_scales": False}
    known = {name for base in kind.__mro__ if "__new__" in vars(base) for name in inspect.signature(base.__new__).parameters}
    return kind(**words, **{name: value for name, value in optional.items() if name in known})


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The buffers that hold a wrapper's values."""
    held = (getattr(tensor, name, None) for name in ("_data", "_transpose", "_rowwise_data", "_columnwise_data"))
    return [part for part in held if part is not None]


def payload_bytes(tensor: torch.Tensor) -> int:
    """The bytes that hold the values, scales left out."""
    if not is_wrapper(tensor):
        return tensor.numel() * tensor.element_size()
    return max(part.numel() for part in parts_of(tensor))


def rows_of(case: Case, rows: slice) -> torch.Tensor:
    """A wrapper with a quantizer, of rows of the case's bytes."""
    payload, scale_inv = case.tensors["payload"][rows], case.tensors["scale_inv"]
    is_blocked = case.axes["storage"] == "mxfp8"
    scale_inv = scale_inv[: scale_inv.shape[0] * payload.shape[0] // case.tensors["payload"].shape[0]] if is_blocked else scale_inv
    return make_wrapper(case.axes["storage"], payload, scale_inv, quantizer_of(case.axes["storage"], scale_inv))


def data_pointer(tensor: torch.Tensor) -> int:
    """What the tensor's own `data_ptr` says, an override included."""
    return tensor.data_ptr()


def dlpack_pointer(tensor: torch.Tensor) -> int:
    """The data pointer in the tensor's DLPack capsule, of either form; 0 is null."""
    capsule = tensor.__dlpack__()
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    managed = api.PyCapsule_GetPointer(capsule, name)
    offset = VERSIONED_DATA_OFFSET if name == b"dltensor_versioned" else 0
    return ctypes.c_void_p.from_address(managed + offset).value or 0

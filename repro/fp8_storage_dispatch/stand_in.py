"""What the two real packages look up and this machine lacks; nothing of the packages themselves is replaced but one boundary.

* TransformerEngine: the wrapper classes are pure Python, the package around them loads compiled libraries at import. The
  packages `transformer_engine`, its `.common` and its `.pytorch` are entered without running their `__init__`; every module
  below them is the real one. `transformer_engine_torch` (compiled) is absent: its DType and `dequantize` are ours.
* Megatron-LM: imported while TransformerEngine is hidden, since it would go on to import the layers that need the
  compiled half. Without a GPU its TileLang kernels are run as they are written (tile_interpreter.py). With a GPU TileLang is
  absent where not installed: its decorators leave the real functions as they are, and there are no kernels.
* The boundary, where a case asks what a kernel is handed: `_get_sparse_mla_fwd_kernel`, and with our edit `_kernel` of
  tilelang_sparse_mla_fp8, return the caller's recorder in place of a kernel, for one call.

Where the real compiled package is installed, or with a GPU the real TileLang, that one is used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import tile_interpreter
import torch
from absent import Absent, optional_module, stand_in_for

ABSENT = ("nvdlfw_inspect", "onnxscript", "pydantic", "tilelang", "transformer_engine_torch")
VARIANT = "megatron.core.transformer.experimental_attention_variant"


class DType(enum.IntEnum):
    """The compiled extension's dtype tags, by the names and values that the Python half mirrors and checks on import."""

    kByte = 0
    kInt32 = 2
    kFloat32 = 4
    kFloat16 = 5
    kBFloat16 = 6
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8
    kFloat4E2M1 = 10


TORCH_DTYPES = {4: torch.float32, 5: torch.float16, 6: torch.bfloat16, 7: torch.float8_e4m3fn, 8: torch.float8_e5m2}


def dequantize(tensor: Any, dtype: int) -> torch.Tensor:
    """The stored values times their scale, one fp32 scale for the tensor or an e8m0 one for each 32 of a row, in `dtype`."""
    data = getattr(tensor, "_data", None)
    if data is not None:
        scale = tensor._scale_inv
    else:
        data, exponents = tensor._rowwise_data, tensor._rowwise_scale_inv.view(torch.uint8)
        if data is None:
            raise NotImplementedError("the stand-in dequantises row-wise data alone")
        rows = data.numel() // data.shape[-1]
        kept = exponents[:rows, : data.shape[-1] // 32].to(torch.float32)
        scale = torch.exp2(kept - 127).repeat_interleave(32, dim=-1).view(data.shape)
    return (data.view(TORCH_DTYPES[int(tensor._fp8_dtype)]).float() * scale).to(TORCH_DTYPES[int(dtype)])


ENTERED: dict[str, dict[str, Any]] = {
    "transformer_engine": {},
    "transformer_engine.common": {"decode_cudnn_version": Absent("decode_cudnn_version")},
    "transformer_engine.pytorch": {"torch_version": lambda: tuple(map(int, torch.__version__.split("+")[0].split(".")))},
    "transformer_engine.pytorch.cpp_extensions": {},
}


def unchecked_dataclass(made: type | None = None, /, **words: Any) -> Any:
    """A dataclass whose fields nobody checks; of the decorator's words only those that the standard library knows count."""
    known = {name: value for name, value in words.items() if name in inspect.signature(dataclasses.dataclass).parameters}
    return dataclasses.dataclass(**known) if made is None else dataclasses.dataclass(made, **known)


def install() -> None:
    """Makes the real classes and the real dispatcher importable; idempotent. Call before either package is imported."""
    is_compiled_there = importlib.util.find_spec("transformer_engine_torch") is not None
    filled = {
        "transformer_engine_torch": {"DType": DType, "dequantize": dequantize},
        "pydantic.dataclasses": {"dataclass": unchecked_dataclass},
    }
    if not stand_in_for(ABSENT, filled):
        return
    if not torch.cuda.is_available():
        tile_interpreter.install()
    import_megatron()
    if not is_compiled_there:
        enter_transformer_engine()


def import_megatron() -> None:
    """Imports the dispatcher, where the release has one, while TransformerEngine cannot be found."""
    hidden = {name: None for name in ("transformer_engine", "transformer_engine_torch")}
    with mock.patch.dict(sys.modules, hidden):
        for name in ("dsa_kernels", "dsa_tilelang_kernels", "ops.tilelang_sparse_mla_fwd"):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(f"{VARIANT}.{name}")
        kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] not in hidden}
    sys.modules.update(kept)


def enter_transformer_engine() -> None:
    """Puts the packages with compiled imports in place as bare packages: their modules are found, their `__init__` is not run."""
    for name in ENTERED:
        spec = importlib.util.find_spec(name)
        if spec is None or name in sys.modules:
            continue
        package = types.ModuleType(name)
        package.__path__, package.__spec__ = list(spec.submodule_search_locations or ()), spec
        for attribute, value in ENTERED[name].items():
            setattr(package, attribute, value)
        sys.modules[name] = package


@contextlib.contextmanager
def on_this_device(device: str) -> Iterator[None]:
    """The device on which releases before 2.10 make every wrapper: without a driver they are told the CPU."""
    if device == "cpu":
        with mock.patch.object(torch.cuda, "current_device", lambda: torch.device("cpu")):
            yield
    else:
        with torch.cuda.device(device):
            yield


@contextlib.contextmanager
def recording(record: Callable[..., None]) -> Iterator[None]:
    """While open, the sparse-MLA kernel's builder returns a kernel that calls `record(q, kv, indices)` and gives zeros."""
    forward = importlib.import_module(f"{VARIANT}.ops.tilelang_sparse_mla_fwd")

    def build(*_: Any, heads: int, dim: int, **__: Any) -> Callable[..., Any]:
        def kernel(q: Any, kv: Any, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            record(q, kv, indices)
            sizes = (*indices.shape[:2], heads)
            out = torch.zeros((*sizes, dim), dtype=torch.bfloat16, device=indices.device)
            return out, torch.zeros(sizes, dtype=torch.float32, device=indices.device)

        return kernel

    def build_fp8(*_: Any) -> Callable[..., Any]:
        def kernel(q: Any, k: Any, indices: torch.Tensor, __: Any) -> tuple[torch.Tensor, torch.Tensor]:
            record(q, k, indices)
            out = torch.zeros((*q.shape[:3], 512), dtype=torch.bfloat16, device=q.device)
            return out, torch.zeros(q.shape[:3], dtype=torch.float32, device=q.device)

        return kernel

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(forward, "_get_sparse_mla_fwd_kernel", build))
        if (fp8 := optional_module(f"{VARIANT}.ops.tilelang_sparse_mla_fp8")) is not None:
            stack.enter_context(mock.patch.object(fp8, "_kernel", build_fp8))
        yield

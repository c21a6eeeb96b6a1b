"""TileLang kernels run as they are written (repro/harness/tile_interpreter.py)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch

HARNESS = Path(__file__).parents[2] / "repro" / "harness"
KERNELS = """
import tilelang
from tilelang import language as T


@tilelang.jit(out_idx=[-1])
def scores(rows, keys, width, step):
    batch = T.dynamic("batch")

    @T.prim_func
    def kernel(
        Q: T.Tensor([batch, rows, width], T.float8_e4m3fn),
        K: T.Tensor([keys, width], T.float8_e4m3fn),
        Index: T.Tensor([rows], T.int32),
        Out: T.Tensor([batch, rows, keys], T.bfloat16),
    ):
        with T.Kernel(batch, threads=128) as b:
            q = T.alloc_shared([rows, width], T.float8_e4m3fn)
            k = T.alloc_shared([keys, width], T.float8_e4m3fn)
            wide = T.alloc_shared([rows, width], T.bfloat16)
            part = T.alloc_fragment([rows, keys], T.float32)
            total = T.alloc_fragment([rows, keys], T.float32)
            T.copy(Q[b, :, :], q)
            T.copy(K[:, :], k)
            for i, d in T.Parallel(rows, width):
                wide[i, d] = T.cast(q[i, d], T.bfloat16)
            T.clear(total)
            for first in T.unroll(0, width, step):
                T.gemm(wide[:, first : first + step], k[:, first : first + step], part, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(rows, keys):
                    total[i, j] += part[i, j]
            for i, j in T.Parallel(rows, keys):
                if Index[i] < 0:
                    total[i, j] = 0.0
            T.copy(total, Out[b, :, :])

    return kernel
"""


@pytest.fixture
def kernels(tmp_path: Path) -> ModuleType:
    """A module of kernels that was imported with the stand-in for TileLang."""
    (tmp_path / "kernels_under_test.py").write_text(KERNELS)
    with mock.patch.object(sys, "path", [str(tmp_path), str(HARNESS), *sys.path]), mock.patch.dict(sys.modules):
        importlib.import_module("tile_interpreter").install()
        yield importlib.import_module("kernels_under_test")


def test_products_of_slices_in_steps_are_the_whole_product(kernels: ModuleType) -> None:
    q, k = (torch.randn(*sizes).to(torch.float8_e4m3fn) for sizes in ((3, 16, 96), (8, 96)))
    index = torch.arange(16, dtype=torch.int32) - 2
    out = kernels.scores(16, 8, 96, 32)(q, k, index)
    wanted = (q.float() @ k.float().T).masked_fill((index < 0).view(1, 16, 1), 0)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), wanted, rtol=2**-8, atol=1e-6)


def test_a_tensor_of_another_dtype_or_size_is_turned_down(kernels: ModuleType) -> None:
    q, k, index = torch.zeros(1, 16, 96), torch.zeros(8, 96), torch.zeros(16, dtype=torch.int32)
    with pytest.raises(TypeError, match="a kernel wants torch.float8_e4m3fn"):
        kernels.scores(16, 8, 96, 32)(q, k, index)
    with pytest.raises(TypeError, match="a kernel wants 96"):
        kernels.scores(16, 8, 96, 32)(q[..., :64].to(torch.float8_e4m3fn), k.to(torch.float8_e4m3fn), index)


def test_a_tensor_between_two_loads_raises_as_on_a_gpu(kernels: ModuleType) -> None:
    kept, k = torch.zeros(16 * 96 + 1, dtype=torch.uint8), torch.zeros(8, 96).to(torch.float8_e4m3fn)
    index, kernel = torch.zeros(16, dtype=torch.int32), kernels.scores(16, 8, 96, 32)
    assert not kernel(kept[:-1].view(torch.float8_e4m3fn).view(1, 16, 96), k, index).any()
    with pytest.raises(RuntimeError, match="misaligned address"):
        kernel(kept[1:].view(torch.float8_e4m3fn).view(1, 16, 96), k, index)

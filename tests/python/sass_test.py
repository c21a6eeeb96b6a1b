"""What the kernels of the CUDA library multiply by and what they spill, read off their code without a GPU."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch

LIBRARY = Path(__file__).parents[2] / "build" / "cuda" / "lib" / "libpatchbench_ops.so"
CUOBJDUMP = Path(torch.__file__).parents[1] / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump"


@pytest.fixture(scope="module")
def kernels() -> dict[str, str]:
    """The code of each kernel by its mangled name."""
    if not LIBRARY.exists() or not CUOBJDUMP.exists():
        pytest.skip("no CUDA build (env/build.sh cuda patchbench_ops) or no cuobjdump beside torch")
    text = subprocess.run([CUOBJDUMP, "-sass", LIBRARY], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"Function : (\S+)(.*?)(?=Function :|\Z)", text, re.S))


def fp8_products(kernels: dict[str, str], forward: str) -> dict[str, Counter]:
    """How often a forward of fp8_storage_dispatch has each product, by its template's argument."""
    name = re.compile(rf"20fp8_storage_dispatch\S*\d{forward}IL(?:b|NS1_4FormE)(\d)E")
    named = [(name.search(function), code) for function, code in kernels.items()]
    return {found[1]: Counter(re.findall(r"\b[QH]GMMA\.\S*", code)) for found, code in named if found}


def test_logits_of_stored_bytes_are_e4m3_products(kernels):
    blocks, rows = fp8_products(kernels, "sparse_mla_forward_kernel"), fp8_products(kernels, "sparse_mla_forward_rows_kernel")
    assert set(blocks) == set(rows) == {"0", "1"}
    # Products of 32 columns: 576 of a row, or 512 of blocks with a bfloat16 rope.
    assert blocks["0"]["QGMMA.64x32x32.F32.E4M3.E4M3"] == 16
    assert all(form["QGMMA.64x64x32.F32.E4M3.E4M3"] == 18 for form in rows.values())


def test_a_bfloat16_query_and_the_values_are_16_bit_products(kernels):
    blocks, rows = fp8_products(kernels, "sparse_mla_forward_kernel"), fp8_products(kernels, "sparse_mla_forward_rows_kernel")
    assert not any("E4M3" in product for product in blocks["1"])  # a bfloat16 query
    assert all(form["HGMMA.64x256x16.F32.BF16"] == 4 for form in blocks.values())
    assert all(form["HGMMA.64x64x16.F32"] == 32 for form in rows.values())  # of half precision


# Kernels of the MIMO backward for one rank. At 128 x 64, with 36 and 33 stores, they take half of the time of the form before
# (bench-forms-h200.json); at 128 x 128 and 64 x 128, with up to 48, they were not timed.
OF_ONE_RANK = re.compile(r"19mamba3_mimo_gqa_bwd\d+(?:added|chunk)_kernelILi\d+ELi\d+ELi1E")


def test_no_kernel_spills_more_than_was_measured(kernels):
    """32 stores, as in the SISO walk over 128 x 64; with 97 it took 2.1 ms on an H200 in place of 1.4."""
    stores = {name: len(re.findall(r"\bSTL\b", code)) for name, code in kernels.items()}
    assert len(stores) > 100
    most = {name: 48 if OF_ONE_RANK.search(name) else 32 for name in stores}
    assert {name: count for name, count in stores.items() if count > most[name]} == {}

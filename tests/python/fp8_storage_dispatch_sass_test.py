"""The forward of fp8_storage_dispatch multiplies e4m3 on the FP8 tensor cores: read off the built library, without a GPU."""

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
def products() -> dict[str, Counter]:
    """What the kernels of each form of operands (0: e4m3 rows, 1: blocks, 2: a bfloat16 query) multiply by."""
    if not LIBRARY.exists() or not CUOBJDUMP.exists():
        pytest.skip("no CUDA build (env/build.sh cuda patchbench_ops) or no cuobjdump beside torch")
    text = subprocess.run([CUOBJDUMP, "-sass", LIBRARY], capture_output=True, text=True, check=True).stdout
    forward = r"Function : \S*fp8_storage_dispatch\S*sparse_mla_forward_kernel\S*4FormE(\d)(.*?)(?=Function :|\Z)"
    return {form: Counter(re.findall(r"\b[QH]GMMA\.\S*", body)) for form, body in re.findall(forward, text, re.S)}


def test_logits_of_stored_bytes_are_e4m3_products(products):
    assert set(products) == {"0", "1", "2"}
    # Products of 32 columns: 576 / 32, and 512 / 32 beside a bfloat16 rope.
    assert products["0"]["QGMMA.64x32x32.F32.E4M3.E4M3"] == 18
    assert products["1"]["QGMMA.64x32x32.F32.E4M3.E4M3"] == 16


def test_a_bfloat16_query_and_the_values_are_bfloat16_products(products):
    assert not any("E4M3" in product for product in products["2"])
    assert all(form["HGMMA.64x256x16.F32.BF16"] == 4 for form in products.values())

"""The wheel patchbench-ops: whole, the same bytes each time, and enough by itself for an op forward and backward.

env/try_ops.sh runs the ops' tests on it under torch 2.11 and 2.15.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
LIBRARY = Path(os.environ.get("PATCHBENCH_BUILD") or ROOT / "build" / "cpu") / "wheel" / "libpatchbench_ops.so"
if not LIBRARY.exists():
    pytest.skip(f"no op library at {LIBRARY}: build patchbench_ops_wheel", allow_module_level=True)
BUILD = "import sys; sys.path.insert(0, sys.argv[1]); import build_wheel; print(build_wheel.build_wheel(sys.argv[2]))"
USE = """import patchbench_ops, torch
q, kv = torch.randn(1, 2, 2, 32, requires_grad=True), torch.randn(1, 4, 1, 32, requires_grad=True)
out, _ = patchbench_ops.sparse_mla(q, kv, torch.zeros(1, 2, 1, 3, dtype=torch.int32), softmax_scale=1.0, head_dim_v=16)
out.sum().backward()
print(patchbench_ops.__file__, patchbench_ops.library.path(), bool((kv.grad != 0).any()), sep="\\n")
"""


def build(folder: Path) -> Path:
    folder.mkdir()
    environment = os.environ | {"PATCHBENCH_OPS_LIB": str(LIBRARY)}
    words = [sys.executable, "-c", BUILD, ROOT / "packs" / "python", folder]
    return folder / subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_it_is_the_same_each_time_and_holds_every_file_under_its_digest(tmp_path: Path) -> None:
    first = build(tmp_path / "a")
    assert build(tmp_path / "b").read_bytes() == first.read_bytes()
    wheel = zipfile.ZipFile(first)
    record = next(name for name in wheel.namelist() if name.endswith("RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(wheel.read(record).decode().splitlines())}
    assert set(rows) == set(wheel.namelist())
    for name, digest in rows.items():
        wanted = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=").decode()
        assert name == record or digest == f"sha256={wanted}", name
    # No path of the machine that built it.
    text = wheel.read("patchbench_ops/lib/libpatchbench_ops.so")
    assert str(ROOT).encode() not in text and str(Path.home()).encode() not in text


def versions_asked_for(library: Path) -> list[tuple[int, int]]:
    """The glibc versions that a library's symbols name, by objdump's list of them."""
    said = subprocess.run(["objdump", "-T", library], capture_output=True, text=True, check=True).stdout
    return [(int(major), int(minor)) for major, minor in re.findall(r"\(?GLIBC_(\d+)\.(\d+)[.\d]*\)?", said)]


def test_its_tag_names_the_glibc_that_it_needs(tmp_path: Path) -> None:
    built = build(tmp_path / "a")
    tag = re.search(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$", built.name)
    assert tag, built.name
    wheel = zipfile.ZipFile(built)
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/WHEEL"))
    assert f"Tag: py3-none-manylinux_2_{tag[1]}_x86_64" in wheel.read(metadata).decode()
    # At least its own symbols; what libstdc++ it needs can raise the tag.
    assert (2, int(tag[1])) >= max(versions_asked_for(LIBRARY))


@pytest.mark.parametrize(
    ("needed", "said"),
    [
        (b"GLIBC_9.99", "needs glibc 9.99, and this system has "),
        (b"GLIBCXX_9.9", "needs a libstdc++ with GLIBCXX_9.9, which this system's is too old for"),
    ],
)
def test_on_an_older_system_the_import_error_names_what_is_missing(tmp_path: Path, needed: bytes, said: str) -> None:
    text = LIBRARY.read_bytes()
    family = needed.split(b"_")[0]
    asked = next(one for one in re.findall(family + rb"_[\d.]+\0", text) if len(one) == len(needed) + 1)
    (tmp_path / "newer.so").write_bytes(text.replace(b"\0" + asked, b"\0" + needed + b"\0"))
    environment = os.environ | {
        "PATCHBENCH_OPS_LIB": str(tmp_path / "newer.so"),
        "PYTHONPATH": f"{Path(torch.__file__).parents[1]}:{ROOT}/packs/python",
    }
    done = subprocess.run([sys.executable, "-c", "import patchbench_ops"], env=environment, capture_output=True, text=True)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: patchbench_ops: newer.so {said}") and "Traceback" not in done.stderr.splitlines()[1:], done.stderr


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (
            "/x/libpatchbench_ops.so: undefined symbol: aoti_torch_new_thing",
            f"needs torch 2.11 or later, and this is {torch.__version__} (no aoti_torch_new_thing)",
        ),
        ("libcudart.so.13: cannot open shared object file: No such file or directory", "needs libcudart.so.13 of CUDA 13, and torch "),
        ("/x/libpatchbench_ops.so: file too short", f"does not load into torch {torch.__version__}: "),
    ],
)
def test_a_torch_without_what_it_needs_is_named(loader: str, said: str) -> None:
    sys.path.insert(0, str(ROOT / "packs/python/patchbench_ops"))
    try:
        import library
    finally:
        sys.path.pop(0)
    assert library.missing(loader).startswith(said)


def test_pip_installs_it_and_it_runs_without_a_clone(tmp_path: Path) -> None:
    wheel, target = build(tmp_path / "wheel"), tmp_path / "target"
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", target, wheel]
    if subprocess.run([*words[:3], "--version"], capture_output=True).returncode != 0:
        pytest.skip("this interpreter has no pip")
    subprocess.run(words, capture_output=True, check=True)
    site = Path(torch.__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name != "PATCHBENCH_OPS_LIB"} | {"PYTHONPATH": f"{target}:{site}"}
    done = subprocess.run([sys.executable, "-c", USE], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    package, library, is_used = done.stdout.splitlines()
    assert Path(package).is_relative_to(target) and Path(library).is_relative_to(target) and is_used == "True"

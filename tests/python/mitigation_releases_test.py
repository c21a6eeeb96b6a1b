"""Mitigations under the launcher on real releases: they act while the package is still importing, under any version string
where the code is a verified release's, and on no other code."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
UPSTREAMS = json.loads((ROOT / "env" / "pins.json").read_text())["upstreams"]
LONG = pytest.mark.skipif("PATCHBENCH_LONG" not in os.environ, reason="a third of its kind: PATCHBENCH_LONG=1 runs it")
STATUS = "import json, patchbench_mitigations, {module}\nprint(json.dumps(patchbench_mitigations.status()))\n"


def fetched(*words: str) -> Path:
    """What env/fetch.py prints of the cache; these tests use no network."""
    done = subprocess.run([sys.executable, ROOT / "env" / "fetch.py", *words], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


@functools.cache
def environment(lock: str) -> str:
    return str(fetched("env", str(ROOT / "env" / "locks" / f"{lock}.txt")))


def installed(folder: Path, upstream: str, version: str) -> Path:
    """One release's files in a folder for the import path, with the metadata of its archive."""
    (pin,) = [release for release in UPSTREAMS[upstream]["releases"] if release["version"] == version]
    archive = fetched("file", UPSTREAMS[upstream]["project"], pin["file"], pin["sha256"])
    fetched("unzip", str(archive), str(folder / version))
    return next((folder / version).rglob("*/PKG-INFO")).parent if pin["file"].endswith(".gz") else folder / version


def status(module: str, asked: str, *path: Path | str, folder: Path) -> tuple[dict[str, Any], str]:
    """`status()` of a launched program that imports one module, and what was logged."""
    (folder / "program.py").write_text(STATUS.format(module=module))
    known = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1",
             "DS_ACCELERATOR": "cpu", "TORCH_CUDA_ARCH_LIST": "9.0", "PATCHBENCH_MITIGATE": asked}  # fmt: skip
    known["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT / "mitigations", *path, environment("torch-2.11"))))
    words = [sys.executable, "-m", "patchbench_mitigations", folder / "program.py"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=known, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize(
    ("version", "asked"), [("0.15.0", "auto"), pytest.param("0.17.1", "auto", marks=LONG), ("0.19.2", "megatron_float16_cast")]
)
def test_it_acts_while_megatron_core_is_importing(tmp_path: Path, version: str, asked: str) -> None:
    release = installed(tmp_path, "megatron-core", version)
    found, said = status("megatron.core.transformer.module", asked, release, folder=tmp_path)
    one = found["mitigations"]["megatron_float16_cast"]
    assert (one["on"], one["version"], one["same_code_as"]) == (True, version, ""), said
    assert "unknown" not in said


@pytest.mark.parametrize(
    ("slug", "upstream", "version", "same", "lock"),
    [
        ("trainer_grad_accumulation", "transformers", "5.5.0", "5.4.0", "transformers-5.0"),
        pytest.param("trainer_grad_accumulation", "transformers", "5.13.0", "5.12.1", "transformers-5.0", marks=LONG),
        ("zero2_grad_accumulation", "deepspeed", "0.18.1", "0.18.2", "deepspeed"),
    ],
)
def test_it_acts_between_verified_releases(tmp_path: Path, slug: str, upstream: str, version: str, same: str, lock: str) -> None:
    target = json.loads((ROOT / f"mitigations/patchbench_mitigations/data/{slug}.json").read_text())["target"]
    found, said = status(target, slug, installed(tmp_path, upstream, version), environment(lock), folder=tmp_path)
    one = found["mitigations"][slug]
    assert (one["on"], one["version"], one["same_code_as"], one["tainted"]) == (True, version, same, ""), said
    assert f"on for {upstream} {version} (same code as {same}), mode exact" in said


def test_a_fork_of_equal_code_is_served_and_one_of_other_code_is_not(tmp_path: Path) -> None:
    target = "liger_kernel.ops.fused_linear_cross_entropy"
    release = installed(tmp_path, "liger-kernel", "0.8.0")
    metadata = release / "liger_kernel-0.8.0.dist-info/METADATA"
    metadata.write_text(metadata.read_text().replace("\nVersion: 0.8.0\n", "\nVersion: 0.8.0+acme\n"))
    found, said = status(target, "liger_flce_none_bwd", release, folder=tmp_path)
    one = found["mitigations"]["liger_flce_none_bwd"]
    assert (one["on"], one["version"], one["same_code_as"], one["tainted"]) == (True, "0.8.0+acme", "0.8.1", ""), said
    file = release / f"{target.replace('.', '/')}.py"
    file.write_text(file.read_text().replace("def backward(ctx, grad_output", "def backward(ctx,  grad_output"))
    found, said = status(target, "auto", release, folder=tmp_path)
    assert not found["mitigations"]["liger_flce_none_bwd"]["on"] and "not verified on liger-kernel 0.8.0+acme" in said

"""Each pack's stand-alone script on the real release: red as released, green with the edits, no answer without it.

What this machine lacks (a GPU, TileLang, compiled extensions) is stood in for as in the pack's own subject.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT

SLUGS = sorted(path.parent.name for path in ROOT.glob("repro/*/standalone.py"))
UPSTREAMS = {"liger_flce_none_bwd": "liger-kernel", "fp8_storage_dispatch": "transformer-engine"}
BESIDE = {"fp8_storage_dispatch": "megatron-core"}
PRELUDES = {
    "dsa_graph_capture": "",
    "sparse_mla_dims": "import absent; absent.stand_in_for(('tilelang',))",
    "sparse_mla_pdp_precision": "import sys, stand_in; sys.modules.update(stand_in.modules())",
}
SLOW = "mamba3_mimo_smem_2d"


def upstream_of(slug: str) -> str:
    return UPSTREAMS.get(slug, "mamba-ssm" if slug.startswith("mamba3") else "megatron-core")


Done = subprocess.CompletedProcess[str]


def run_script(slug: str, *paths: Path, libraries: str = "", prelude: str | None = None) -> Done:
    cache = (PROGRAM.parents[1] / "CMakeCache.txt").read_text()
    site = re.search(r"^PATCHBENCH_TORCH_SITE:PATH=(.*)$", cache, re.MULTILINE)[1]
    path = os.pathsep.join(map(str, (*paths, site, ROOT / "repro" / slug, ROOT / "repro/harness")))
    first = PRELUDES.get(slug, "import stand_in; stand_in.install()") if prelude is None else prelude
    script = f"{first}\nimport runpy; runpy.run_path('{ROOT / 'repro' / slug / 'standalone.py'}', run_name='__main__')"
    env = os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "LD_LIBRARY_PATH": libraries}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=900)


def start(*words: str | Path) -> None:
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


PACKAGES = ("liger_kernel", "mamba_ssm", "megatron", "tilelang", "transformer_engine")


def edited_tree(folder: Path, slug: str, upstream: str) -> Path:
    """The pin with the pack's edits: what holds the package, one folder down in an sdist."""
    start("patch", "new", slug, folder, "--upstream", upstream)
    return next(root for root in (folder, *folder.iterdir()) if any((root / name).is_dir() for name in PACKAGES))


def take_edits_back(tree: Path, slug: str, mails: Path) -> None:
    start("patch", "export", slug, mails, "--upstream", upstream_of(slug))
    for mail in sorted(mails.rglob("*.patch"), reverse=True):
        # The mail has the layout of the clone; a wheel's root is the package's.
        text = re.sub(r"([ab])/src/", r"\1/", mail.read_text())
        words = ["git", "-C", tree.parent, "apply", "-R", f"--directory={tree.name}"]
        subprocess.run(words, input=text, text=True, check=True)


@pytest.mark.parametrize("slug", [slug for slug in SLUGS if slug != SLOW])
def test_is_red_on_the_release_and_green_with_the_edit(tmp_path: Path, slug: str) -> None:
    tree = edited_tree(tmp_path / "edited", slug, upstream_of(slug))
    more = [edited_tree(tmp_path / "beside", slug, BESIDE[slug])] if slug in BESIDE else []
    green = run_script(slug, tree, *more)
    assert (green.returncode, green.stdout.splitlines()[-1][:5]) == (0, "right"), green.stderr
    take_edits_back(tree, slug, tmp_path / "mails")
    red = run_script(slug, tree, *more)
    assert (red.returncode, "WRONG" in red.stdout.splitlines()[-1]) == (1, True), red.stderr


def test_lowering_with_tma_fails_on_the_release(tmp_path: Path) -> None:
    """A minute: the kernel is lowered twice, with TMA and without."""
    tree = edited_tree(tmp_path / "edited", SLOW, upstream_of(SLOW))
    take_edits_back(tree, SLOW, tmp_path / "mails")
    tilelang = edited_tree(tmp_path / "tilelang", SLOW, "tilelang")
    words = [sys.executable, ROOT / "env/fetch.py", "env", ROOT / "env/locks/tilelang-0.1.8.txt"]
    site = Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())
    red = run_script(SLOW, tree, tilelang, site, libraries=f"{site}/z3/lib:{site}/tvm_ffi/lib")
    assert (red.returncode, "does not lower" in red.stdout) == (1, True), red.stderr


@pytest.mark.parametrize("slug", SLUGS)
def test_says_that_the_package_is_absent(slug: str) -> None:
    done = run_script(slug, prelude="")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(r"cannot say: .*; pip install \S+==\d", done.stderr.splitlines()[-1]), done.stderr


def test_every_pack_has_one() -> None:
    assert sorted(path.parent.name for path in ROOT.glob("packs/*/manifest.json")) == SLUGS

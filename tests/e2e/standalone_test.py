"""Each pack's stand-alone script on the real release: red as released, green with the edits, no answer without it.

A script names the releases that it needs in its last message. What this machine lacks (a GPU, TileLang, compiled extensions) is
stood in for as in the pack's own subject.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from answers import PROGRAM, ROOT

SLUGS = sorted(path.parent.name for path in ROOT.glob("packs/*/manifest.json"))
UPSTREAMS = json.loads((ROOT / "env/pins.json").read_text())["upstreams"]
NEEDED = re.compile(r"([\w-]+)(?:\[\w+\])?==(\d[\w.]*)")
Done = subprocess.CompletedProcess[str]


def needed_by(slug: str) -> list[tuple[str, str]]:
    """Upstream and version of each release that the script wants installed."""
    text = (ROOT / "repro" / slug / "standalone.py").read_text()
    return NEEDED.findall(next(line for line in text.splitlines() if "pip install" in line and "==" in line))


def site_of(lock: str) -> Path:
    words = [sys.executable, ROOT / "env/fetch.py", "env", ROOT / f"env/locks/{lock}.txt"]
    return Path(subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip())


def run_script(slug: str, *paths: Path, prelude: str = "") -> Done:
    cache = (PROGRAM.parents[1] / "CMakeCache.txt").read_text()
    site = re.search(r"^PATCHBENCH_TORCH_SITE:PATH=(.*)$", cache, re.MULTILINE)[1]
    path = os.pathsep.join(map(str, (*paths, site, ROOT / "repro" / slug, ROOT / "repro/harness")))
    libraries = os.pathsep.join(f"{path}/{name}/lib" for path in paths for name in ("z3", "tvm_ffi"))
    script = f"{prelude}\nimport runpy; runpy.run_path('{ROOT / 'repro' / slug / 'standalone.py'}', run_name='__main__')"
    env = os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "LD_LIBRARY_PATH": libraries}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=900)


def start(*words: str | Path) -> None:
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def edited_tree(folder: Path, slug: str, upstream: str, version: str) -> Path:
    """The pin with the pack's edits: what holds the package, one folder down in an sdist."""
    start("patch", "new", slug, f"{upstream}@{version}", folder)
    return next(root for root in (folder, *folder.iterdir()) if (root / UPSTREAMS[upstream]["package"]).is_dir())


def take_edits_back(tree: Path, slug: str, upstream: str, mails: Path) -> None:
    start("patch", "export", slug, upstream, mails)
    for mail in sorted(mails.rglob("*.patch"), reverse=True):
        # The mail has the layout of the clone; a wheel's root is the package's.
        text = re.sub(r"([ab])/src/", r"\1/", mail.read_text())
        words = ["git", "-C", tree.parent, "apply", "-R", f"--directory={tree.name}"]
        subprocess.run(words, input=text, text=True, check=True)


def environment_of(upstream: str, version: str) -> str:
    """The lock that a release runs in."""
    (release,) = [r for r in UPSTREAMS[upstream]["releases"] if r["version"] == version]
    return release.get("environment", UPSTREAMS[upstream]["environment"])


@pytest.mark.parametrize("slug", SLUGS)
def test_is_red_on_the_release_and_green_with_the_edit(tmp_path: Path, slug: str) -> None:
    (first, *_) = needed = needed_by(slug)
    trees = [edited_tree(tmp_path / name, slug, name, version) for name, version in needed]
    locks = {environment_of(name, version) for name, version in needed} - {"torch-2.11"}
    is_stood_in = (ROOT / "repro" / slug / "stand_in.py").exists()
    words = (slug, *trees, *map(site_of, sorted(locks)))
    prelude = "import stand_in; stand_in.install()" if is_stood_in else ""
    green = run_script(*words, prelude=prelude)
    assert (green.returncode, green.stdout.splitlines()[-1][:5]) == (0, "right"), green.stderr
    take_edits_back(trees[0], slug, first[0], tmp_path / "mails")
    red = run_script(*words, prelude=prelude)
    assert (red.returncode, "WRONG" in red.stdout.splitlines()[-1]) == (1, True), red.stderr


@pytest.mark.parametrize("slug", SLUGS)
def test_says_that_the_package_is_absent(slug: str) -> None:
    done = run_script(slug)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(r"cannot say: .*; pip install \S+==\d", done.stderr.splitlines()[-1]), done.stderr

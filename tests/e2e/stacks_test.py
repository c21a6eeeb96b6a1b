"""`reproduce --python VENV` on each stack whose torch is in the cache: the judge's torch and the subject's are independent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from answers import ROOT, answer, need_reproducer

SLUG = "liger_flce_none_bwd"
need_reproducer(SLUG)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench"
TAG = f"cp3{sys.version_info[1]}"
# Locked environments, and the venvs of env/try_stacks.py.
TORCHES = {
    **{re.sub(r"-cp3.*", "", path.name): path for path in sorted(CACHE.glob(f"env/torch-2.*-{TAG}-*/")) if (path / "torch").exists()},
    **{path.name: next(path.glob("lib/python3*/site-packages")) for path in sorted(CACHE.glob("stacks/torch-2.*/"))},
}


def stack(folder: Path, torch: Path, version: str) -> Path:
    """A venv that has a release of Liger-Kernel and the torch of another folder."""
    pins = json.loads((ROOT / "env/pins.json").read_text())["upstreams"]["liger-kernel"]["releases"]
    pin = next(one for one in pins if one["version"] == version)
    wheel = CACHE / "files" / pin["sha256"] / pin["file"]
    if not wheel.exists():
        pytest.skip(f"{pin['file']} is not in the cache")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "torch.pth").write_text(f"{torch}\n")
    return folder


@pytest.mark.skipif(not TORCHES, reason="no torch is in the cache")
@pytest.mark.parametrize("torch", TORCHES)
def test_a_stack_is_judged_whatever_its_torch(tmp_path: Path, torch: str) -> None:
    for version, sentinel in (("0.8.0", "BUG_REPRODUCED(wrong_gradients)"), ("0.8.5", "BUG_ABSENT")):
        venv = stack(tmp_path / version, TORCHES[torch], version)
        status, document = answer(tmp_path, "reproduce", SLUG, "--python", str(venv), "--device", "cpu")
        assert (status, document["sentinel"]) == (0, sentinel)
        versions = json.dumps(document["subjects"][0]["context"])
        assert f'"torch": "{torch.removeprefix("torch-")}' in versions, versions

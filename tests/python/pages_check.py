"""The pages of docs/ in a bare Debian root: each command prints what its page shows.

usage: pages_check.py PAGES STACKS [CLONE]

STACKS/PACKAGE==VERSION is a virtual environment with that release, where torch is to be had for this interpreter. Without CLONE the pages
are followed as far as the wheels serve them (env/try_wheels.sh). In a clone every command runs, after README's first, which prepares the
machine.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from docs_page import followed, settled, without_progress

# What a bare root cannot do, by the beginning of the command: the tests of the repository follow these (tests/e2e/docs_test.py).
LEFT = {
    "./patchbench reproduce": "the judge",
    "./patchbench validate": "the judge",
    "./patchbench window": "the judge",
    "./patchbench sweep": "the judge",
    "./patchbench patch": "the releases",
    "./patchbench bundle": "the releases",
    "./patchbench ledger lint": "what bundle writes",
    "ls": "what bundle and patch export write",
}
# How the lines of a clone's preparation begin.
PREPARATION = ("bootstrap: ", "build: ", "fetch: ")
pages, stacks, clone = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None
folder = clone or Path("/tmp/pages")
if clone:
    subprocess.run(["./patchbench", "reproduce", "liger_flce_none_bwd", "--yes"], cwd=clone, check=True)
else:
    folder.mkdir()
    (folder / "patchbench").symlink_to(shutil.which("patchbench"))
num_tried = num_wrong = 0


def printed(command: str, requirement: str, shown: str) -> str:
    global num_tried
    if (not clone and any(command.startswith(words) for words in LEFT)) or (requirement and not (stacks / requirement).is_dir()):
        return shown
    ours = os.environ | {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": "/tmp/triton"}
    if requirement:
        ours["PATH"] = f"{stacks / requirement}/bin:{ours['PATH']}"
    num_tried += 1
    said = subprocess.run(["bash", "-c", f"exec 2>&1; {command}"], cwd=folder, env=ours, stdout=subprocess.PIPE, text=True).stdout
    return without_progress(said, PREPARATION)


for page in sorted(pages.glob("*.md")):
    text = page.read_text()
    wanted, now = settled(text), settled(followed(text, folder, printed))
    if now != wanted:
        num_wrong += 1
        print("\n".join(difflib.unified_diff(wanted.splitlines(), now.splitlines(), page.name, "as printed here", lineterm="", n=0)))
print(f"about: pages {num_tried} commands followed")
sys.exit(num_wrong > 0 or num_tried == 0)

#!/usr/bin/env python3
"""Compares the machine code of every kernel of two trees, after a change that should leave it as it is. Needs nvcc, no GPU.

  compare_sass.py OLD NEW [FILE...]    OLD and NEW: a revision, or a folder with the tree; FILE: .cu files of both, all of NEW by default

A kernel is compared by its instructions' bits and by its registers, stack, shared and constant bytes, for sm_90a with the flags of the
CUDA build. One whose name changed is paired with one of the same code. Prints the result as JSON. Exit: 0 all equal, 1 not, 2 usage.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ("-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr")


def output_of(*words: str | Path, **more: object) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def cuobjdump() -> str:
    """That of the PATH, else that of the locked triton."""
    site = output_of(sys.executable, ROOT / "env/fetch.py", "env", ROOT / "env/locks/torch-2.11.txt").strip()
    return shutil.which("cuobjdump") or f"{site}/triton/backends/nvidia/bin/cuobjdump"


def tree_of(name: str, folder: Path) -> Path:
    """The folder that `name` is, or the packs of the revision `name`, unpacked into `folder`."""
    if Path(name).is_dir():
        return Path(name).resolve()
    folder.mkdir()
    archive = subprocess.run(["git", "-C", ROOT, "archive", name, "packs"], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return folder


def source_of(name: str) -> str:
    """What is recorded of a tree: git's digest of its packs, which outlives a rebase; of a folder its name."""
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", f"{name}:packs"], capture_output=True, text=True)
    return f"packs {done.stdout.strip()}" if done.returncode == 0 else name


def kernels_of(tree: Path, file: str, cubin: Path) -> dict[str, tuple[str, ...]]:
    """Each function's instructions and resources by its C++ name; {} where the tree has no such file."""
    if not (tree / file).exists():
        return {}
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    subprocess.run([nvcc, *FLAGS, "-o", cubin, file], cwd=tree, check=True)
    tool = cuobjdump()
    code = dict(re.findall(r"Function : (\S+)(.*?)(?=Function :|\Z)", output_of(tool, "-sass", cubin), re.S))
    used = dict(re.findall(r"Function (\S+):\n\s*(.*)", output_of(tool, "-res-usage", cubin)))
    names = output_of("c++filt", input="\n".join(code)).splitlines()
    return {
        name: (used[mangled], *re.findall(r"/\* (0x[0-9a-f]{16}) \*/", code[mangled])) for name, mangled in zip(names, code, strict=True)
    }


def compare(file: str, old: dict[str, tuple[str, ...]], new: dict[str, tuple[str, ...]]) -> dict[str, object]:
    """One file's row. Every kernel of either tree counts once, as equal, renamed or different."""
    equal = [name for name in old if old[name] == new.get(name)]
    lost, come = ([name for name in one if name not in equal] for one in (old, new))
    renamed = []
    for name in lost.copy():
        other = next((other for other in come if other not in old and new[other] == old[name]), None)
        if name in new or other is None:
            continue
        lost.remove(name)
        come.remove(other)
        renamed.append([name, other])
    # Two words of bits an instruction.
    words = sum(len(code) - 1 for code in new.values())
    row = {"file": file, "kernels": len(new), "instructions": words // 2, "equal": len(equal), "renamed": len(renamed)}
    row["different"] = sorted(set(lost) | set(come))
    return row


def main(words: list[str]) -> int:
    """See the module's text."""
    if len(words) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        old, new = (tree_of(name, Path(scratch) / which) for which, name in zip(("old", "new"), words, strict=False))
        files = words[2:] or sorted(str(f.relative_to(new)) for f in new.glob("packs/*/*.cu"))
        jobs = [(tree, file, Path(scratch) / f"{i}-{which}.cubin") for i, file in enumerate(files) for which, tree in enumerate((old, new))]
        found = list(pool.map(lambda job: kernels_of(*job), jobs))
    rows = [compare(file, *pair) for file, pair in zip(files, zip(found[::2], found[1::2], strict=True), strict=True)]
    totals = Counter()
    for row in rows:
        totals.update({key: len(value) if isinstance(value, list) else value for key, value in row.items() if key != "file"})
    compiler = re.search(r"V([\d.]+)", output_of(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc", "--version"))[1]
    facts = {"old": source_of(words[0]), "new": source_of(words[1]), "target": "sm_90a", "nvcc": compiler}
    print(json.dumps({**facts, "files": rows, "total": totals}))
    return 0 if totals["different"] == 0 and totals["kernels"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

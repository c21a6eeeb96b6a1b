#!/usr/bin/env python3
"""The digest of a folder: sha256 over its sorted paths, kinds, modes, owners and contents.

  tree_digest.py DIR     print 64 hex digits

Times do not count; device nodes and what lies in dev/ do not either (an engine makes its own).
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from pathlib import Path


def content_of(path: Path, info: os.stat_result) -> str:
    """What a path holds: a file's sha256, a link's target, nothing for a folder."""
    if stat.S_ISLNK(info.st_mode):
        return os.readlink(path)
    if not stat.S_ISREG(info.st_mode):
        return ""
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            h.update(chunk)
    return h.hexdigest()


def tree_digest(root: Path) -> str:
    """One line per path, NUL-separated fields, sorted by the path's bytes; the sha256 of them all."""
    lines = []
    for folder, folders, files in os.walk(root):
        if Path(folder) == root and "dev" in folders:
            folders.remove("dev")
        for name in folders + files:
            path = Path(folder, name)
            info = path.lstat()
            fields = [str(path.relative_to(root)), oct(info.st_mode), f"{info.st_uid}:{info.st_gid}", content_of(path, info)]
            lines.append(os.fsencode("\0".join(fields)))
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    print(tree_digest(Path(sys.argv[1])))

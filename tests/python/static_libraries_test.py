"""env/static_libraries.sh pins a libgit2 without the newest fixes of Debian: the code that they change is never called."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Whatever opens a connection, reads .gitmodules or writes a work tree, which may hold submodules.
UNSAFE = re.compile(r"\bgit_(?:remote|transport|smart|clone|fetch|push|submodule|checkout|stash|status|diff_\w*workdir|worktree)\w*")


def called(text: str) -> set[str]:
    return set(UNSAFE.findall(text))


def test_no_function_with_an_open_hole_is_called() -> None:
    sources = [*ROOT.glob("runner/**/*.cpp"), *ROOT.glob("runner/**/*.h")]
    assert any("git_blob_lookup(" in path.read_text() for path in sources)
    assert {path.name: found for path in sources if (found := called(path.read_text()))} == {}
    assert "libgit2_1.5.1+ds-1+deb12u1.debian" in (ROOT / "env/static_libraries.sh").read_text(), "another series has other fixes"


def test_a_call_is_found() -> None:
    assert called("git_remote_fetch(remote); git_blob_lookup(x); git_submodule_foreach(r)") == {"git_remote_fetch", "git_submodule_foreach"}

"""Run where `patchbench` and `patchbench-py` are installed: the compiled module and the program give the same answers."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib

import patchbench
from patchbench import native


def answers(edit: pathlib.Path) -> list[object]:
    """What both must agree on: the parts of an edit, its result, and the errors."""
    out: list[object] = [patchbench.Edit.load(edit).files, patchbench.Edit.load(edit).header]
    text = "Subject: a\n\nFile: a.txt\nBlob: new\nResult: 9766475a4185a151dc9d56d614ffb9aaea3bfd42\n\n0a\nok\n.\nw\n"
    out.append(patchbench.Edit.parse(text).apply("a.txt"))
    for words in (("a.txt", b"other"), ("b.txt", None)):
        try:
            patchbench.Edit.parse(text).apply(*words)
        except patchbench.PatchbenchError as e:
            out.append((type(e), str(e).split("'")[0]))
    try:
        patchbench.Edit.parse("nonsense", "0001-a.edit")
    except patchbench.UsageError as e:
        out.append(str(e))
    return out


def main() -> None:
    """Asks both ways, over every edit that the wheel ships."""
    assert native.module() is not None
    files = importlib.metadata.distribution("patchbench").files or []
    edits = [pathlib.Path(str(f.locate())).resolve() for f in files if f.suffix == ".edit"]
    assert edits
    for edit in edits:
        os.environ.pop("PATCHBENCH_NATIVE", None)
        compiled = answers(edit)
        os.environ["PATCHBENCH_NATIVE"] = "0"
        assert native.module() is None and answers(edit) == compiled, edit


if __name__ == "__main__":
    main()

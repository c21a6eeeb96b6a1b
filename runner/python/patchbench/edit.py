"""An `.edit` file: a header, and for each upstream file the git blob id of its base and an `ed` script."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from typing import Any

from patchbench import native
from patchbench.program import PathText, UsageError, ask, run_bytes


@dataclass(frozen=True)
class FileEdit:
    """What an edit does to one file.

    `blob` and `result` are the git ids of the whole file before and after; empty for a new and for a deleted file.
    `mode`: empty, 100644 or 100755. `script`: the `ed` commands.
    """

    path: str
    blob: str
    result: str
    mode: str
    script: str


@dataclass(frozen=True)
class Edit:
    """One edit. It fits exactly one state of each file; nothing is ever applied with fuzz."""

    name: str
    header: tuple[tuple[str, str], ...]
    files: tuple[FileEdit, ...]
    text: str

    @staticmethod
    def load(file: PathText) -> Edit:
        """The edit in a file; a mutant over its fix is expanded. Raises UsageError `NAME:LINE: REASON` if it is malformed."""
        try:
            with open(file, encoding="utf-8", newline="") as source:
                source.read()
        except OSError as e:
            raise UsageError(f"{os.fspath(file)}: {e.strerror}") from e
        except UnicodeDecodeError as e:
            raise UsageError(f"{os.fspath(file)}: not UTF-8 text") from e
        module = native.module()
        return _from(module.load_edit(os.fspath(file)) if module else ask(["patch", "read", os.fspath(file)]))

    @staticmethod
    def parse(text: str, name: str = "0001-edit.edit") -> Edit:
        """The edit that a text holds. Raises UsageError `NAME:LINE: REASON` if it is malformed."""
        module = native.module()
        return _from(module.read_edit(text, name) if module else _asked(text, name))

    def field(self, key: str) -> str:
        """One field of the header; empty if it is absent."""
        return dict(self.header).get(key, "")

    def apply(self, path: str, base: bytes | None = None) -> bytes:
        """The bytes of one file after the edit; `base` is the file as released, None for a file that the edit makes.

        Raises UsageError if the edit has no such file, if the base is not the file that it was written for, or if the
        result is not the recorded one.
        """
        module = native.module()
        if module:
            return module.apply_edit(self.text, self.name, path, base or b"")
        with tempfile.TemporaryDirectory() as folder:
            edit = _written(folder, self.name, self.text.encode())
            words = ["patch", "read", edit, "--file", path]
            if base is not None:
                words += ["--base", _written(folder, "base", base)]
            return run_bytes(words)


def _from(document: Any) -> Edit:
    files = tuple(FileEdit(f["path"], f["blob"], f["result"], f["mode"], f["script"]) for f in document["files"])
    return Edit(document["name"], tuple((key, value) for key, value in document["header"]), files, document["text"])


def _written(folder: str, name: str, data: bytes) -> str:
    path = os.path.join(folder, os.path.basename(name))
    with open(path, "wb") as out:
        out.write(data)
    return path


def _asked(text: str, name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return ask(["patch", "read", _written(folder, name, text.encode())])

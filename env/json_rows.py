#!/usr/bin/env python3
"""Writes JSON files of measurements with one row a line, so that a change of one row is one line of a diff.

  json_rows.py FILE...           write them in place
  json_rows.py --check FILE...   write nothing; exit 1 and name the files that are in another form

A value stays on one line, unless it is the whole document or holds a list of objects or lists further down.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def has_rows(value: Any) -> bool:
    """Whether a value holds a list of objects or lists: these are rows."""
    if isinstance(value, dict):
        return any(has_rows(inner) for inner in value.values())
    return isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value)


def text_of(value: Any, indent: str = "") -> str:
    """The text of a value, without the line feed at its end."""
    if not value or not (has_rows(value) or (not indent and isinstance(value, dict))):
        return json.dumps(value, ensure_ascii=False)
    deeper = indent + " "
    if isinstance(value, list):
        parts = [text_of(inner, deeper) if isinstance(inner, dict) else json.dumps(inner, ensure_ascii=False) for inner in value]
    else:
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {text_of(inner, deeper)}" for key, inner in value.items()]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return opening + "\n" + ",\n".join(deeper + part for part in parts) + "\n" + indent + closing


def main(words: list[str]) -> int:
    """See the module's text."""
    is_check = words[:1] == ["--check"]
    files = [Path(word) for word in words[is_check:]]
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    stale = []
    for file in files:
        before = file.read_text()
        after = text_of(json.loads(before)) + "\n"
        if after != before:
            stale.append(file)
            if not is_check:
                file.write_text(after)
    for file in stale if is_check else ():
        print(f"{file}: not one row a line; run env/json_rows.py {file}")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The releases that the tests run are among those that env/bootstrap.sh fetches: tests use no network."""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
UPSTREAMS = json.loads((ROOT / "env" / "pins.json").read_text())["upstreams"]


def needed() -> dict[str, set[str]]:
    spec = importlib.util.spec_from_file_location("fetch", ROOT / "env" / "fetch.py")
    fetch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fetch)
    return fetch.releases_needed(ROOT, UPSTREAMS)


def after_option(file: Path, option: str) -> Iterator[str]:
    """The texts that follow `option` in a call, a list or a tuple of a Python file."""
    for node in ast.walk(ast.parse(file.read_text())):
        items = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
        texts = [item.value if isinstance(item, ast.Constant) else None for item in items]
        yield from (b for a, b in zip(texts, texts[1:], strict=False) if a == option and isinstance(b, str))


def words_of_runs(file: Path) -> Iterator[str]:
    """The texts in a call, a list or a tuple that runs a release."""
    for node in ast.walk(ast.parse(file.read_text())):
        items = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
        texts = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        yield from texts if {"reproduce", "validate"} & set(texts) else ()


def test_releases_that_tests_name_are_fetched() -> None:
    locked = {r["version"] for upstream in UPSTREAMS.values() for r in upstream["releases"]}
    fetched = {version for versions in needed().values() for version in versions}
    named = {}
    for file in sorted((ROOT / "tests" / "e2e").glob("*_test.py")):
        for text in (*words_of_runs(file), *after_option(file, "--upstreams")):
            for version in text.rpartition("@")[2].split(","):
                named[version] = file.name
    assert {"0.18.2", "2.3.1", "0.1.15"} <= set(named)
    assert [(v, file) for v, file in named.items() if v in locked and v not in fetched] == []


def test_red_pins_and_newest_releases_are_fetched_and_not_every_release() -> None:
    found = needed()
    assert found["liger-kernel"] == {r["version"] for r in UPSTREAMS["liger-kernel"]["releases"]}
    assert found["transformer-engine"] == {r["version"] for r in UPSTREAMS["transformer-engine"]["releases"]} - {"2.1.0", "2.19.0"}
    assert {"0.1.8", "0.1.9", "0.1.15"} <= found["tilelang"] and "0.1.12" not in found["tilelang"]
    assert "triton" not in found and "tilelang-examples" in found

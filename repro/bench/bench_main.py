"""The main function of every bench: it reads the options, needs a CUDA device and prints one JSON document.

With --out the document is written after each shape: what ends the program later loses no row."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from device_time import load_ops, need_cuda

HOW = "one process, warm, 256 MiB written between calls, the host ahead of the device, CUDA events; [median, least, greatest] ms"
Shape = list[int | str]


class Bench(NamedTuple):
    """What one bench measures."""

    name: str
    rows_of: Callable[[Shape, argparse.Namespace], list[dict]]  # of one shape
    shapes: list[Shape]  # without --shape
    shape_is: str  # the axes of a shape
    dtype: str = "bfloat16"
    repeats: int = 30
    filters: dict[str, str] = {}  # further options and their help; each may be given several times
    about: Callable[[], dict] = dict  # further keys of the document, known after the last row
    rows_are: str = "rows"
    needs_ops: bool = True


def shape_from(like: Shape, text: str) -> Shape:
    """A shape with as many values as `like`, each of the same type."""
    parts = text.split(",")
    if len(parts) != len(like):
        raise argparse.ArgumentTypeError(f"wants {len(like)} values, got {text}")
    try:
        return [type(one)(part) for one, part in zip(like, parts, strict=True)]
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def options_of(bench: Bench) -> argparse.Namespace:
    text = sys.modules[bench.rows_of.__module__].__doc__
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", type=functools.partial(shape_from, bench.shapes[0]), help=bench.shape_is)
    parser.add_argument("--repeats", type=int, default=bench.repeats)
    parser.add_argument("--out", type=Path, help="the document's file, instead of standard output")
    parser.add_argument(
        "--ahead", action="store_true", help="run all shapes once before, side by side, so that compilers fill their caches"
    )
    for name, words in bench.filters.items():
        parser.add_argument(name, action="append", default=[], help=words)
    options = parser.parse_args()
    options.shape = options.shape or bench.shapes
    return options


def text_of(shape: Shape) -> str:
    """As --shape takes it."""
    return ",".join(map(str, shape))


def run_ahead(bench: Bench, options: argparse.Namespace) -> None:
    """Runs this bench once for each shape, each in a process of its own. What they print, and whether they fail, is not kept."""
    filters = [word for name in bench.filters for value in getattr(options, name.strip("-")) for word in (name, value)]
    call = [sys.executable, sys.argv[0], "--repeats", "1", "--out", os.devnull, *filters]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    began, runs = time.monotonic(), [subprocess.Popen([*call, "--shape", text_of(shape)], **silent) for shape in options.shape]
    for shape, run in zip(options.shape, runs, strict=True):
        run.wait()
        print(f"{bench.name}: {time.monotonic() - began:.1f} s: ahead, {text_of(shape)}", file=sys.stderr)


def document(bench: Bench, options: argparse.Namespace, rows: list[dict]) -> str:
    about = {"dtype": bench.dtype, "shape_is": bench.shape_is, "repeats": options.repeats} | bench.about()
    head = {"bench": bench.name, "date": datetime.date.today().isoformat(), "device": torch.cuda.get_device_name(), "how": HOW}
    return json.dumps(head | about | {bench.rows_are: rows}) + "\n"


def measured(bench: Bench, options: argparse.Namespace) -> tuple[list[dict], bool]:
    """The rows of each shape up to the first failure of the device or interrupt, and whether there was none."""
    rows: list[dict] = []
    for shape in options.shape:
        began, is_measured = time.monotonic(), True
        try:
            rows += bench.rows_of(shape, options)
        except (RuntimeError, KeyboardInterrupt) as failure:
            rows.append({"shape": shape, "failed": f"{type(failure).__name__}: {str(failure).strip()[:300]}"})
            is_measured = False
        if options.out:
            options.out.write_text(document(bench, options, rows))
        if not is_measured:
            return rows, False
        torch.cuda.empty_cache()
        print(f"{bench.name}: {time.monotonic() - began:.1f} s: {json.dumps(rows[-1])}", file=sys.stderr)
    return rows, True


def versions(*packages: str) -> dict[str, str]:
    """Of those that are installed here."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """||a - b|| / ||b|| in float64, to three digits."""
    return float(f"{((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item():.3g}")


def best_peer(ms: float, peers: dict[str, float]) -> dict[str, object]:
    """The quickest of the peers' times by name, and `ms` over it: what a row's `of_best_peer` holds."""
    best = min(peers, key=peers.__getitem__)
    return {"peer": best, "ratio": round(ms / peers[best], 3)}


def bench_main(bench: Bench) -> None:
    """Exit: 0 every shape was measured, 1 one was not and the rows before it are printed, 2 usage, 4 no CUDA device."""
    options = options_of(bench)
    (load_ops if bench.needs_ops else need_cuda)()
    with contextlib.redirect_stdout(sys.stderr):  # compilers write there
        if options.ahead:
            run_ahead(bench, options)
        rows, is_complete = measured(bench, options)
        text = "" if options.out else document(bench, options, rows)
    print(text, end="")
    sys.exit(0 if is_complete else 1)

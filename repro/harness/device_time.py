"""Times calls on the current CUDA device."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import statistics
import sys
from collections.abc import Callable

import torch

FLUSH_BYTES = 256 << 20  # written before each call: more than any L2 cache


def turns(calls: dict[str, Callable[[int], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each call by CUDA events, sorted: round i runs them all with i, one after another, each with a cold L2 cache.
    Three rounds run before them."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(repeats + 3):
        for name, call in calls.items():
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call(i)
            end.record()
            end.synchronize()
            if i >= 3:
                times[name].append(begin.elapsed_time(end))
    return {name: sorted(some) for name, some in times.items()}


def event_times(call: Callable[[], object], repeats: int) -> list[float]:
    """The same of one call."""
    return turns({"": lambda _: call()}, repeats)[""]


def summary(times: list[float]) -> list[float]:
    """[median, least, greatest] of sorted times, as the bench files of the evidence have it."""
    return [round(t, 4) for t in (statistics.median(times), times[0], times[-1])]


def spread(call: Callable[[], object], repeats: int = 30) -> list[float]:
    """The summary of one call, in ms."""
    return summary(event_times(call, repeats))


def in_turn(calls: dict[str, Callable[[int], object]], repeats: int = 30) -> dict[str, list[float]]:
    """The summary of each of the calls, in ms, which take turns."""
    return {name: summary(times) for name, times in turns(calls, repeats).items()}


def need_cuda(program: str) -> None:
    """Ends with exit code 4 where there is no CUDA device."""
    if not torch.cuda.is_available():
        print(f"{program}: no CUDA device on this machine", file=sys.stderr)
        sys.exit(4)


def versions(*packages: str) -> dict[str, str]:
    """Of those that are installed here."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def print_bench(bench: str, rows: list[dict], **more: object) -> None:
    """One JSON document on stdout."""
    how = "one process, warm, 256 MiB written between calls, CUDA events; [median, least, greatest] ms"
    print(json.dumps({"bench": bench, "device": torch.cuda.get_device_name(), "how": how, **more, "rows": rows}))

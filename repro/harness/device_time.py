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


def event_times(call: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of `repeats` calls by CUDA events, sorted; three more run before them. Each starts with a cold L2 cache."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times = []
    for i in range(repeats + 3):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end))
    return sorted(times)


def spread(call: Callable[[], object], repeats: int = 30) -> list[float]:
    """[median, least, greatest] ms, as the bench files of the evidence have it."""
    times = event_times(call, repeats)
    return [round(t, 4) for t in (statistics.median(times), times[0], times[-1])]


def in_turn(calls: dict[str, Callable[[int], object]], repeats: int = 30) -> dict[str, list[float]]:
    """[median, least, greatest] ms of each call, by CUDA events: round i runs them all with i, one after another, each with a cold L2
    cache. Three rounds run before them."""
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
    return {name: [round(t, 4) for t in (statistics.median(some), min(some), max(some))] for name, some in times.items()}


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

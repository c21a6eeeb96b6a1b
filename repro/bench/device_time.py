"""Times calls on the current CUDA device, and measures their memory."""

from __future__ import annotations

import importlib
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

FLUSH_BYTES = 256 << 20  # written before each call: more than any L2 cache
HOT_SECONDS = 0.4
CYCLES_PER_SECOND = 4e9  # of torch.cuda._sleep: twice what the clock makes, so that the host is ahead


def turns(calls: dict[str, Callable[[int], object]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each call by CUDA events, sorted: round i runs them all with i, one after another, each with a cold L2 cache.
    Three rounds run before them. The device waits before a call for as long as the host needs to issue it: its work is not in the time."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    host: dict[str, float] = {}  # seconds to issue a call, the least so far
    for i in range(repeats + 3):
        for name, call in calls.items():
            flush.zero_()
            torch.cuda._sleep(int(host.get(name, 0) * CYCLES_PER_SECOND))
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            issued = time.perf_counter()
            call(i)
            host[name] = min(host.get(name, math.inf), time.perf_counter() - issued)
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


def hot(calls: dict[str, Callable[[int], object]], seconds: float = HOT_SECONDS) -> dict[str, float]:
    """Milliseconds of each call among calls of its own that follow one another for `seconds` without a rest, as in a training step: the
    GPU is as warm as it gets, and L2 holds what the call before left. The first half of the calls is not counted."""
    found = {}
    for name, call in calls.items():
        begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        call(0)
        begin.record()
        call(1)
        end.record()
        end.synchronize()
        half = max(1, math.ceil(seconds * 500 / begin.elapsed_time(end)))
        for i in range(2 * half):
            if i == half:
                middle.record()
            call(i)
        end.record()
        end.synchronize()
        found[name] = round(middle.elapsed_time(end) / half, 4)
    return found


def peak_bytes(call: Callable[[], object]) -> int:
    """The allocator's peak in one call above what was held before it."""
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - held


def clocks() -> str:
    """What nvidia-smi says now of the clocks and the temperature of the device, or "unknown"."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,temperature.gpu", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def need_cuda() -> None:
    """Ends with exit code 4 without a CUDA device."""
    if not torch.cuda.is_available():
        print(f"{Path(sys.argv[0]).name}: no CUDA device on this machine", file=sys.stderr)
        sys.exit(4)


def load_ops() -> None:
    """Imports patchbench_ops over the library that PATCHBENCH_OPS_LIB names; needs a CUDA device."""
    need_cuda()
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packs" / "python"))
    importlib.import_module("patchbench_ops")

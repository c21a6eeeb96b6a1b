"""Many clients of one TCPStore, of which one tells its mitigations late: a warning, no end of the run, and few calls of the store."""

from __future__ import annotations

import importlib.util
import logging
import os
import resource
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch.distributed import TCPStore

MITIGATIONS = Path(__file__).parents[2] / "mitigations"
sys.path.insert(0, str(MITIGATIONS))

from patchbench_mitigations.after_import import Refused  # noqa: E402

LONG = pytest.mark.skipif("PATCHBENCH_LONG" not in os.environ, reason="takes minutes: PATCHBENCH_LONG=1 runs it")


class Store:
    """A client. One counter counts the calls of all clients."""

    calls = [0]

    def __init__(self, client: TCPStore, timeout_s: float):
        self.client, self.timeout = client, timedelta(seconds=timeout_s)

    def add(self, key: str, amount: int) -> int:
        self.calls[0] += 1
        return self.client.add(key, amount)


def rank_module(rank: int, world: int, store: Store) -> ModuleType:
    """The module as a process of its own has it, in a process group of `world` ranks."""
    spec = importlib.util.spec_from_file_location(f"rank_{rank}", MITIGATIONS / "patchbench_mitigations" / "ranks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    group = SimpleNamespace(get_rank=lambda: rank, get_world_size=lambda: world,
                            distributed_c10d=SimpleNamespace(_get_default_store=lambda: store))  # fmt: skip
    module._distributed = lambda: group
    return module


def compared(world: int, late_s: float | None, timeout_s: float, **changed: Any) -> tuple[list[str], float]:
    """What the ranks raise, and the calls a second while they wait for the first, which is late, or comes when all others have ended."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    raised: list[str] = []
    began: list[float] = []
    everyone = threading.Barrier(world, lambda: began.append(time.monotonic()))
    Store.calls[0] = 0

    def run(rank: int) -> None:
        client = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False, use_libuv=True)
        module = rank_module(rank, world, Store(client, timeout_s))
        vars(module).update(changed)
        everyone.wait()
        if rank == 0 and late_s:
            time.sleep(late_s)
        elif rank == 0:
            for thread in threads[1:]:
                thread.join()
        try:
            module.compare_asked()
        except Refused as e:
            raised.append(str(e))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised, Store.calls[0] / (time.monotonic() - began[0])


@pytest.mark.parametrize(
    ("world", "late_s", "said_s"), [(64, 6, 2), pytest.param(1024, 120, 60, marks=LONG)], ids=["64_clients", "1024_clients"]
)
def test_a_late_rank_is_a_warning_and_costs_a_call_a_second(
    world: int, late_s: float, said_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    raised, calls = compared(world, late_s, timeout_s=600, LATE_S=said_s)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    print(f"{world} clients, one {late_s} s late: {calls:.0f} calls a second")
    assert raised == []
    assert len(said) == 1 and f"rank {world - 1}: 1 of {world} ranks have not told their mitigations, and it waits" in said[0]
    # 8 calls with doubling pauses and 6 of telling and comparing; then one a second.
    assert calls < world * (1 + 14 / late_s)


def test_a_rank_that_never_tells_is_a_warning_after_the_groups_own_time_out(caplog: pytest.LogCaptureFixture) -> None:
    raised, _ = compared(4, 5, timeout_s=2)
    assert raised == [] and "it goes on after 2 s without a comparison with them" in caplog.text


def test_a_rank_that_asks_for_something_else_ends_the_others_before_the_late_one_tells() -> None:
    raised, _ = compared(3, None, timeout_s=60, asked=lambda: threading.current_thread().name)
    assert len(raised) == 3 and all("ask for other mitigations than" in one for one in raised)

"""Ranks of one run that tell different mitigations end it.

Each rank tells the process group's store what its environment asks, at `init_process_group` or when a mitigation acts; a
mitigation's first use waits until all have told, and compares. What acts is compared by slug, among those on which it acts:
a stage of a pipeline that never imports an upstream has nothing to compare.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from types import ModuleType
from typing import Any

from patchbench_mitigations.after_import import LOG, Refused, is_killed, when_imported

# Of a rank that waits for others: thousands of them share one store.
FIRST_PAUSE_S, LAST_PAUSE_S = 0.01, 1.0
LATE_S = 60.0
PREFIX = "patchbench_mitigations/"
_agreed: list[Any] = []  # the store whose ranks have told the same
_told: list[Any] = []  # the store that this rank has told
_watched: list[bool] = []
_states: dict[str, tuple[str, str]] = {}  # of each slug that was switched here


class RanksDiffer(Refused):
    """Ranks of one run do not have the same mitigations: the run must end, whoever asked for them."""


def _distributed() -> ModuleType | None:
    """torch.distributed where a process group of more than one rank is up and has a store (MPI's has none); imports nothing."""
    found = sys.modules.get("torch.distributed")
    is_up = found is not None and found.is_available() and found.distributed_c10d.is_initialized()
    return found if is_up and found.get_world_size() > 1 and _store(found) is not None else None


def rank() -> int | None:
    """This process's rank: of the process group, else what the launcher's RANK says, else None."""
    found = _distributed()
    if found is not None:
        return found.get_rank()
    return int(os.environ["RANK"]) if os.environ.get("RANK", "").isdigit() else None


def asked() -> str:
    """What the environment asks, in one form."""
    words = {name: sorted(filter(None, (w.strip() for w in os.environ.get(name, "").split(","))))
             for name in ("PATCHBENCH_MITIGATE", "PATCHBENCH_FORCE")}  # fmt: skip
    return json.dumps(words, sort_keys=True)


def _store(found: ModuleType) -> Any:
    return found.distributed_c10d._get_default_store()


def _key(text: str) -> str:
    import hashlib

    return PREFIX + hashlib.sha256(text.encode()).hexdigest()


def tell() -> None:
    """Tells the other ranks what is asked here; once for each process group, and nothing before there is one."""
    found = _distributed()
    if found is None or (_told and _told[0] is _store(found)):
        return
    _told[:] = [_store(found)]
    _told[0].add(_key(asked()), 1)
    _told[0].add(PREFIX + "told", 1)


def compare_asked() -> None:
    """Waits until every rank has told, as long as the process group waits; a rank that is late is a warning. RanksDiffer once one that
    has told asks for something else."""
    tell()
    found = _distributed()
    if found is None or (_agreed and _agreed[0] is _store(found)):
        return
    store, world, told, pause_s, is_said = _store(found), found.get_world_size(), 0, FIRST_PAUSE_S, False
    began, patience_s = time.monotonic(), store.timeout.total_seconds()
    while True:
        before, told = told, store.add(PREFIX + "told", 0)
        if told != before and (alike := store.add(_key(asked()), 0)) < told:
            raise RanksDiffer(
                f"rank {found.get_rank()}: {told - alike} of {world} ranks ask for other mitigations than {asked()}; "
                "set PATCHBENCH_MITIGATE and PATCHBENCH_FORCE alike on all of them"
            )
        waited_s = time.monotonic() - began
        if told >= world or waited_s > patience_s:
            break
        if waited_s > LATE_S and not is_said:
            is_said = True
            _warn_of_late(found.get_rank(), world - told, world, f"it waits for them, up to {patience_s:.0f} s")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LAST_PAUSE_S)
    if told < world:
        _warn_of_late(found.get_rank(), world - told, world, f"it goes on after {patience_s:.0f} s without a comparison with them")
    _agreed[:] = [store]


def _warn_of_late(rank: int, late: int, world: int, what: str) -> None:
    """Said by two ranks, one of which may be late itself: thousands of lines say no more."""
    if rank in (0, world - 1):
        text = "rank %d: %d of %d ranks have not told their mitigations, and %s; import patchbench_mitigations.auto on all of them"
        LOG.warning(text, rank, late, world, what)


def compare_state(name: str, state: str) -> None:
    """RanksDiffer if the state of this name, "slug/n-th switch", is another on the rank that first had one. Remembered, and
    compared once there is a process group."""
    slug = name.partition("/")[0]
    _states[slug] = (name, state)
    found = _distributed()
    if found is None:
        return
    first = _store(found).compare_set(f"{PREFIX}state/{name}", "", state).decode()
    if first != state:
        raise RanksDiffer(f"{slug}: rank {found.get_rank()} has: {state}; another rank: {first}; they must be alike")


def watch() -> None:
    """Makes `init_process_group` of torch.distributed end with a comparison of the ranks' modes. Idempotent."""
    if not _watched:
        _watched.append(True)
        when_imported("torch.distributed.distributed_c10d", _compare_after_init)


def _compare_after_init() -> None:
    original = sys.modules["torch.distributed.distributed_c10d"].init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **words: Any) -> Any:
        result = original(*args, **words)
        tell()
        if not is_killed():  # the kill switch ends no run
            compare_asked()
            for name, state in list(_states.values()):
                compare_state(name, state)
        return result

    for name, holder in list(sys.modules.items()):
        if name.startswith("torch.distributed") and vars(holder).get("init_process_group") is original:
            holder.init_process_group = init_process_group

"""A case at several ranks: as many processes of this machine, forked before this one has computed, which talk over the loopback.

A launcher's variables are set in each; the process group is the subject's to begin. What a subject returns is said of every rank:
where the ranks' tensors differ the answer is NaN. One rank without an answer ends all.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

PATIENCE_S = 150.0  # for all ranks of one case
GRACE_S = 10.0  # after the first that raised: the others may wait for it
CONTROL_LIMIT = 1e-12  # of a mean over ranks, in float64


class NoAnswer(Exception):
    """A rank ended or was ended before it answered, or the backend itself is wrong."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def become(rank: int, num_ranks: int, port: int) -> None:
    """Makes this process a rank, as a launcher would."""
    number = str(rank)
    os.environ.update(RANK=number, LOCAL_RANK=number, WORLD_SIZE=str(num_ranks), LOCAL_WORLD_SIZE=str(num_ranks),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")  # fmt: skip
    torch.set_num_threads(1)


def check_backend(rank: int, device: str) -> None:
    """A net without the package's code, on the subject's own process group under DistributedDataParallel: its gradient is the mean over
    the ranks."""
    if not torch.distributed.is_initialized():
        return
    net = torch.nn.Linear(3, 2, bias=False, dtype=torch.float64, device=device)
    torch.nn.init.constant_(net.weight, 0.5)
    wrapped = torch.nn.parallel.DistributedDataParallel(net)
    wrapped(torch.full((1, 3), rank + 1.0, dtype=torch.float64, device=device)).sum().backward()
    mean = (torch.distributed.get_world_size() + 1) / 2
    if not (net.weight.grad - mean).abs().max() <= CONTROL_LIMIT:
        raise NoAnswer(f"{torch.distributed.get_backend()} is wrong: a mean of {mean} over the ranks came out as {net.weight.grad[0, 0]}")


def serve(answer: Connection, work: Callable[[int], Any], rank: int, num_ranks: int, port: int, device: str) -> None:
    try:
        become(rank, num_ranks, port)
        made = work(rank)
        if made[0]["status"] == "ok":
            check_backend(rank, device)
        answer.send_bytes(pickle.dumps(made))
    except BaseException as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    answer.recv_bytes()  # a rank that ends closes what the others may still read from
    os._exit(0)


def together(work: Callable[[int], tuple[dict[str, Any], Any]], num_ranks: int, device_of: Callable[[int], str]) -> list[Any]:
    """What `work(rank)` gives on each rank: a report with its "status", and the rest. The first report that is not "ok" alone, where
    there is one. Raises NoAnswer."""
    port, children, answers = free_port(), {}, {}
    for rank in range(num_ranks):
        ours, theirs = multiprocessing.Pipe()
        child = os.fork()
        if child == 0:
            ours.close()
            serve(theirs, work, rank, num_ranks, port, device_of(rank))
        theirs.close()
        children[ours] = (rank, child)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while len(answers) < num_ranks:
            open_pipes = [pipe for pipe, (rank, _) in children.items() if rank not in answers]
            ready = wait(open_pipes, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank, _ = children[pipe]
                try:
                    answers[rank] = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionError):
                    raise NoAnswer(f"rank {rank} ended without an answer") from None
                if answers[rank][0]["status"] != "ok":
                    deadline = min(deadline, time.monotonic() + GRACE_S)
    finally:
        for pipe, (_, child) in children.items():
            pipe.close()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    failed = [one for one in answers.values() if one[0]["status"] != "ok"]
    if failed:
        return failed[:1]
    if len(answers) < num_ranks:
        raise NoAnswer(f"rank {min(set(range(num_ranks)) - set(answers))} gave no answer in {PATIENCE_S:.0f} s")
    return [answers[rank] for rank in range(num_ranks)]


def agreed(outputs: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The outputs of all ranks as one: NaN where they differ. Raises ValueError where that cannot be said so."""
    first, *others = outputs
    made = dict(first)
    for rank, other in enumerate(others, 1):
        if first.keys() != other.keys():
            raise ValueError(f"rank {rank} gives other outputs than rank 0: {', '.join(sorted(first.keys() ^ other.keys()))}")
        for name, tensor in first.items():
            theirs = other[name].to(tensor.device)
            if tensor.shape != theirs.shape or tensor.dtype != theirs.dtype:
                raise ValueError(f"rank {rank} gives {name} in another shape or dtype than rank 0")
            if tensor.is_floating_point():  # a NaN differs from everything, and stays NaN
                made[name] = made[name].where(tensor == theirs, float("nan"))
            elif not tensor.equal(theirs):
                raise ValueError(f"rank {rank} gives other values of {name} than rank 0")
    return made

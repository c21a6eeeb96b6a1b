"""Two ranks of one machine, on the loopback: of the subject and of the run of 200 steps."""

from __future__ import annotations

import os
import socket

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the loopback is the one network of a sandbox

import stand_in
import torch

RANKS = 2


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def become(rank: int, port: int) -> None:
    """Makes this process a rank; the process group is deepspeed's to begin."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    stand_in.install()

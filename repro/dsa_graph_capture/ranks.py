"""One rank of a context-parallel group: `ranks.py RANK RANKS cpu|cuda FOLDER`; leaves what it saw in FOLDER/rank<RANK>.json."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import capture_check
import torch
import torch.distributed as dist

SEQLEN = 8
TIMEOUT_S = 300


def sites(rank: int, ranks: int, device: torch.device) -> dict[str, object]:
    """The calls of a step with context parallelism that talk to other ranks or lay out this one's tokens."""
    folder = "megatron.core.transformer.experimental_attention_variant"
    dsa, layout = (importlib.import_module(f"{folder}.{name}") for name in ("dsa", "dsa_layout"))
    lengths = torch.tensor([0, 4 * ranks, 4 * ranks, 12 * ranks], device=device)
    sized = {"cp_size": ranks, "cp_rank": rank, "device": device, "output_size": 12}

    def uniform_length(seqlen: int = SEQLEN) -> None:
        dsa._validate_nonpacked_cp_uniform_length(seqlen, SEQLEN * ranks, ranks, dist.group.WORLD, device)

    return {
        "uniform_length": uniform_length,
        "positions": lambda: layout.build_packed_allgather_cp_local_positions(lengths, **sized),
    }


def breaks(call: object, is_cuda: bool) -> int:
    """Capture modes that refuse the call; without a GPU the places that read what a device would hold."""
    if is_cuda:
        outcomes = capture_check.check_capture(call, within="megatron", device=f"cuda:{torch.cuda.current_device()}")
        print(*outcomes, sep="\n")
        return sum(not one.captured for one in outcomes)
    with capture_check.as_if_capturing():
        report = capture_check.check_reads(call, within="megatron")
    print(*report.sites, sep="\n")
    return sum(count for site, count in report.sites if site.function == "_validate_nonpacked_cp_uniform_length")


def main(rank: int, ranks: int, kind: str, folder: Path) -> None:
    """Joins the group, calls each site and writes the answer; ends hard, for a spoilt capture can leave NCCL waiting."""
    if os.environ.get("PATCHBENCH_MITIGATE"):
        importlib.import_module("patchbench_mitigations.auto")
    is_cuda = kind == "cuda"
    device = torch.device("cuda", rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("nccl" if is_cuda else "gloo", store=store, rank=rank, world_size=ranks)
    calls = sites(rank, ranks, device)
    try:
        calls["uniform_length"](SEQLEN + rank)
        is_uneven_rejected = False
    except RuntimeError:
        is_uneven_rejected = True
    seen = {name: breaks(call, is_cuda) for name, call in calls.items()}
    (folder / f"rank{rank}.json").write_text(json.dumps({"breaks": seen, "is_uneven_rejected": is_uneven_rejected}))
    sys.stdout.flush()
    os._exit(0)


def run(ranks: int, kind: str, folder: Path) -> list[dict[str, object]]:
    """What each of `ranks` processes saw. RuntimeError where one left no answer."""
    folder.mkdir(parents=True)
    paths = [str(Path(capture_check.__file__).parent), os.environ.get("PYTHONPATH", "")]
    # Eight bytes a rank need no NVLink multicast, whose set-up a host's other users could notice.
    plain = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
    env = os.environ | plain | {"PYTHONPATH": ":".join(paths), "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    words = [[sys.executable, __file__, str(rank), str(ranks), kind, str(folder)] for rank in range(ranks)]
    started = [subprocess.Popen(argv, env=env) for argv in words]
    try:
        for process in started:
            process.wait(TIMEOUT_S)
    finally:
        for process in started:
            process.kill()
    answers = [folder / f"rank{rank}.json" for rank in range(ranks)]
    if missing := [answer.stem for answer in answers if not answer.exists()]:
        raise RuntimeError(f"no answer from {', '.join(missing)}")
    return [json.loads(answer.read_text()) for answer in answers]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))

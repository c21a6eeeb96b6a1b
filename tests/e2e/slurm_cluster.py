"""A Slurm of this machine alone: munged, slurmctld and several slurmd on the loopback, as Debian packages them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

CONF = """
ClusterName=patchbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
SlurmUser=root
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool-%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdTimeout=5
KillWait=2
ReturnToService=2
GresTypes=gpu
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
NodeName=c0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000
NodeName=c1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000
NodeName=g0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]} CPUs=1 RealMemory=1000 Feature=h200 Gres=gpu:1
PartitionName=all Nodes=c0,c1,g0 Default=YES MaxTime=INFINITE State=UP
"""
NODES = ("c0", "c1", "g0")


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "state").mkdir(parents=True)
        host = socket.gethostname().split(".")[0]
        (folder / "slurm.conf").write_text(CONF.format(host=host, dir=folder, ports=free_ports(4)))
        (folder / "gres.conf").write_text("NodeName=g0 Name=gpu File=/dev/zero\n")
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o400)
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def start_all(self) -> None:
        folder = self.folder
        self.start("munged", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket",
                   f"--pid-file={folder}/munged.pid",
                   f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed")  # fmt: skip
        self.start("slurmctld")
        for node in NODES:
            self.start_node(node)
        self.wait(lambda: self.states() == {node: "idle" for node in NODES}, 60)

    def start(self, *words: str) -> None:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def start_node(self, node: str) -> None:
        self.start("slurmd", "-N", node, "-c")

    def words(self, *words: str) -> str:
        return subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60).stdout

    def states(self) -> dict[str, str]:
        rows = [line.split() for line in self.words("sinfo", "-h", "-N", "-o", "%N %T").splitlines()]
        return {row[0]: row[1] for row in rows if len(row) == 2}

    def wait(self, is_so, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, self.words("sinfo") + self.words("squeue") + (self.folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.3)

    def kill_node(self, node: str) -> None:
        """As a power cut has it: the daemon and every process of its tasks at once."""
        file = self.folder / f"{node}.pid"
        doomed = {int(file.read_text())} if file.exists() else set()
        for pid in processes():  # another cluster of this machine may have a node of that name
            held = environment_of(pid)
            if f"SLURMD_NODENAME={node}\0" in held and f"SLURM_CONF={self.folder}/" in held:
                doomed.add(pid)
        doomed |= steps_of(self.folder, node)
        for one in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)

    def stop(self) -> None:
        for node in NODES:
            self.kill_node(node)
        for name in ("slurmctld", "munged"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.kill(int((self.folder / f"{name}.pid").read_text()), signal.SIGTERM)


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environment_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def steps_of(folder: Path, node: str) -> set[int]:
    """The step daemons of a node: each holds its own log or spool folder open, and names no node in its environment."""
    found = set()
    for pid in processes():
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() != "slurmstepd":
                continue
            held = {os.readlink(f) for f in Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            continue
        if any(h.startswith((f"{folder}/spool-{node}", f"{folder}/{node}.log")) for h in held):
            found.add(pid)
    return found

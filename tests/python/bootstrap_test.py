"""env/bootstrap.sh on machines of the test's own: which packages it asks for, and the headers that it takes without their package."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = json.loads((ROOT / "env/policy.json").read_text())["packages"]
HEADER = "usr/include/valijson/validator.hpp"
Done = subprocess.CompletedProcess[str]


class Machine:
    """A Debian whose apt-get, dpkg-query and id are stubs that write down what they are asked."""

    def __init__(self, folder: Path):
        self.folder, self.installed, self.offline, self.uid = folder, sum(PACKAGES.values(), []), False, 0
        self.installed.remove("libvalijson-dev")
        (folder / "root/env/locks").mkdir(parents=True)
        for name in ("bootstrap.sh", "policy.json", "pins.json", "fetch.py"):
            shutil.copy(ROOT / "env" / name, folder / "root/env")
        package = folder / "package"
        (package / HEADER).parent.mkdir(parents=True)
        (package / HEADER).write_text("// a header\n")
        (package / "DEBIAN").mkdir()
        control = "Package: libvalijson-dev\nVersion: 1\nArchitecture: all\nMaintainer: a test\nDescription: a test\n"
        (package / "DEBIAN/control").write_text(control)
        subprocess.run(["dpkg-deb", "-b", package, folder / "it.deb"], check=True, capture_output=True)

    def bootstrap(self, *words: str) -> Done:
        stubs = {
            "apt-get": f'echo "$*" >>{self.folder}/asked\n'
            + ("exit 100" if self.offline else f'case "$1" in download) cp {self.folder}/it.deb libvalijson-dev_1_all.deb ;; esac'),
            "dpkg-query": 'case "$*" in *libvalijson*) exit 1 ;; esac\n' + "\n".join(f"echo '{p} installed'" for p in self.installed),
            "id": f"echo {self.uid}",
        }
        for name, script in stubs.items():
            (self.folder / "bin").mkdir(exist_ok=True)
            (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.folder / "bin" / name).chmod(0o755)
        env = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder), "CI": "true"}
        words = ("bash", self.folder / "root/env/bootstrap.sh", "--host-only", *words)
        return subprocess.run(words, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def asked(self) -> list[str]:
        """What apt-get was asked since the last call."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def headers(self) -> list[Path]:
        return list(self.folder.glob(f".cache/patchbench/headers/*/libvalijson-dev/{HEADER}"))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_package_that_brings_qt_is_asked_for(machine: Machine) -> None:
    machine.installed = []
    assert machine.bootstrap("--tests", "--wheels").returncode == 0
    install = next(line.split() for line in machine.asked() if line.startswith("install"))
    assert not {"libvalijson-dev", "pybind11-dev"} & set(install)
    wanted = [p for purpose, packages in PACKAGES.items() if purpose != "headers" for p in packages]
    assert install[4:] == wanted
    assert machine.bootstrap().returncode == 0
    for_all = next(line.split() for line in machine.asked() if line.startswith("install"))
    assert not {"slurmd", "libpcre2-dev"} & set(for_all)


def test_packages_of_the_tests_are_for_tests_alone(machine: Machine) -> None:
    machine.installed = PACKAGES["build"] + PACKAGES["sandbox"]
    assert machine.bootstrap().returncode == 0
    assert not [line for line in machine.asked() if line.startswith("install")]


def test_headers_are_unpacked_once_and_need_no_network_again(machine: Machine) -> None:
    assert machine.bootstrap().returncode == 0
    assert len(machine.headers()) == 1 and [line.split()[0] for line in machine.asked()] == ["download"]
    machine.offline = True
    shutil.rmtree(machine.folder / ".cache/patchbench/bootstrap")
    assert machine.bootstrap().returncode == 0
    assert machine.asked() == []


def test_root_without_a_network_is_told_and_tries_again_next_time(machine: Machine) -> None:
    machine.offline = True
    first = machine.bootstrap()
    assert first.returncode == 1 and "run: apt-get update" in first.stderr
    assert [line.split()[0] for line in machine.asked()] == ["download", "update"]
    machine.offline = False
    assert machine.bootstrap().returncode == 0 and machine.headers()


def test_a_user_fetches_headers_without_root_or_is_told_what_to_do(machine: Machine) -> None:
    machine.uid, machine.offline = 1000, True
    refused = machine.bootstrap()
    assert refused.returncode == 1 and "run: sudo apt-get update" in refused.stderr
    assert not [line for line in machine.asked() if line.startswith("update")] and not machine.headers()
    machine.offline = False
    assert machine.bootstrap().returncode == 0 and machine.headers()

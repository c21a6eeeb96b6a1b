"""env/release.sh: what an archive holds, and that its bytes follow from the wheel's files alone."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "env/release.sh"
FILES = {
    "patchbench/__init__.py": b"",
    "patchbench-1.2.data/scripts/patchbench": b"\x7fELF",
    "patchbench-1.2.data/data/share/patchbench/env/pins.json": b"{}",
    "patchbench-1.2.dist-info/METADATA": b"",
    "patchbench-1.2.dist-info/licenses/LICENSE": b"Apache",
}


def wheel_of(folder: Path, names: list[str], year: int) -> Path:
    folder.mkdir()
    path = folder / "patchbench-1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            wheel.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), FILES[name])
    return path


def released(wheel: Path) -> Path:
    said = subprocess.run([SCRIPT, wheel, wheel.parent], capture_output=True, text=True, check=True).stdout
    digest, path = said.split()
    assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == digest
    return Path(path)


def test_an_archive_holds_the_program_its_data_and_the_licences(tmp_path: Path) -> None:
    path = released(wheel_of(tmp_path / "a", list(FILES), 2020))
    assert path.name == "patchbench-1.2-linux-x86_64.tar.gz"
    with tarfile.open(path) as archive:
        modes = {m.name.removeprefix("patchbench-1.2/"): m.mode for m in archive}
        readme = archive.extractfile("patchbench-1.2/README").read().decode()
        assert archive.extractfile("patchbench-1.2/bin/patchbench").read() == b"\x7fELF"
    assert modes == {"README": 0o644, "bin/patchbench": 0o755, "licenses/LICENSE": 0o644, "share/patchbench/env/pins.json": 0o644}
    assert len(readme.splitlines()) == 3 and readme.startswith("Patchbench 1.2 ")


def test_neither_the_clock_nor_the_order_changes_the_bytes(tmp_path: Path) -> None:
    first = released(wheel_of(tmp_path / "a", list(FILES), 2020))
    second = released(wheel_of(tmp_path / "b", list(reversed(FILES)), 2024))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == bytes(4), "gzip's header holds a time"
    with tarfile.open(first) as archive:
        members = archive.getmembers()
    assert [m.name for m in members] == sorted(m.name for m in members)
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}


def test_a_wheel_without_the_program_is_refused(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path / "a", [name for name in FILES if "scripts" not in name], 2020)
    done = subprocess.run([SCRIPT, wheel, wheel.parent], capture_output=True, text=True)
    assert done.returncode == 1 and "holds no program" in done.stderr and not list(wheel.parent.glob("*.tar.gz*"))

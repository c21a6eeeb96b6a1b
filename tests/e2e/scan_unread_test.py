"""What `patchbench scan` does not understand is never an all-clear, and what a file holds never reaches the terminal as it is."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from answers import BIN, PROGRAM
from scan_test import LIGER, document, install, scan, site, states, uv_lock

CLEAR = "No release with a known bug was found."


def test_two_requirements_on_one_line_are_unread(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("numpy==1.26.4\nliger-kernel==0.8.5 liger-kernel==0.8.0\n")
    status, found = document("r.txt", "--pack", LIGER, cwd=tmp_path)
    assert status == 3 and found["unread"] == ["r.txt:2: liger-kernel==0.8.5 liger-kernel==0.8.0"]
    said = scan("r.txt", "--pack", LIGER, cwd=tmp_path).stdout
    assert "unknown: which package is installed by: r.txt:2: liger-kernel==0.8.5" in said and CLEAR not in said
    (tmp_path / "r.txt").write_text("liger-kernel==0.8.5 liger-kernel==0.8.0\n")
    found = scan("r.txt", cwd=tmp_path)
    assert found.returncode == 2 and found.stderr.startswith("patchbench: r.txt:1: is no requirement: ")


@pytest.mark.parametrize(
    "text",
    ["# x\rliger-kernel==0.8.0\r", "# x\u2028liger-kernel==0.8.0", "liger-\\\nkernel==0.8.0", "-cmore.txt", "liger.kernel (==0.8.0)",
     "Liger__Kernel===0.8.0", "liger-kernel[a]>=0.1,==0.8.0;os_name=='posix' --hash=sha256:0"],
)  # fmt: skip
def test_a_hit_in_a_spelling_of_pip_is_a_hit(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.txt").write_text("numpy==1.26.4\n" + text, newline="")
    (tmp_path / "more.txt").write_text("liger-kernel==0.8.0\n")
    assert states(tmp_path / "r.txt") == (1, {(LIGER, "liger-kernel", "0.8.0", "hit")})


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_a_byte_order_mark_is_read_as_pip_reads_it(tmp_path: Path, encoding: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "r.txt").write_text(f"{mark}liger-kernel==0.8.0\r\n", encoding=encoding, newline="")
    assert states(tmp_path / "r.txt")[0] == 1


@pytest.mark.parametrize("words", [[], ["--plain"], ["--format", "markdown"], ["--format", "github"], ["--json"]])
def test_text_of_a_file_moves_no_cursor(tmp_path: Path, words: list[str]) -> None:
    hidden = "%1b%5b2J%1b%5bH%0a%c2%9b2J%e2%80%ae" + CLEAR.replace(" ", "%20") + "%0a"
    components = [
        {"type": "library", "name": "liger-kernel", "purl": f"pkg:pypi/liger-kernel@0.8.5{hidden}"},
        {"type": "library", "name": "x", "purl": f"pkg:pypi/liger-kernel-x{hidden}@1"},
    ]
    (tmp_path / "bom\x1b[2J.json").write_text(json.dumps({"bomFormat": "CycloneDX", "components": components}))
    found = scan(tmp_path / "bom\x1b[2J.json", "--pack", LIGER, *words)
    assert found.returncode == 3
    assert not [c for c in found.stdout if (c < " " and c != "\n" and c != "\t") or "\x7f" <= c < "\xa0" or c == "\u202e"]
    assert not [line for line in found.stdout.splitlines() if line.startswith(CLEAR)]
    (tmp_path / "r.txt").write_text("-r 'a\x1b[2J\u202e'\n")
    found = scan(tmp_path / "r.txt")
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and found.stderr.strip().isprintable()


def test_what_is_no_file_on_a_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)
        listener.bind("socket")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "to_pipe").symlink_to("pipe")
    (tmp_path / "r.txt").write_text("-r pipe\n")
    places = [tmp_path / name for name in ("pipe", "socket", "loop", "to_pipe", "r.txt")]
    for place in (*places, "/dev/zero", "/dev/null", "/dev/tty", "/proc/self/status", "/proc/kmsg", "/proc/self/environ"):
        found = subprocess.run([PROGRAM, "scan", place], capture_output=True, text=True, timeout=20, check=False)
        assert found.returncode == 2 and found.stderr.count("\n") == 1 and not found.stdout, (place, found)
    (tmp_path / "lock.txt").write_text("numpy==1.0\n")
    for option in ("--vex", "--config", "--db"):
        words = [PROGRAM, "scan", tmp_path / "lock.txt", option, tmp_path / "pipe"]
        found = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
        assert found.returncode == 2 and found.stderr.count("\n") == 1, (option, found)


def test_metadata_that_contradict_themselves_hide_nothing(tmp_path: Path) -> None:
    def answers(folder: str, text: str) -> set[tuple[str, str]]:
        shutil.rmtree(tmp_path / "venv", ignore_errors=True)
        info = site(install(tmp_path / "venv", "numpy", "1.0")) / folder
        info.mkdir()
        (info / ("METADATA" if "dist" in folder.lower() else "PKG-INFO")).write_text(text, newline="")
        return {(row[2], row[3]) for row in states(tmp_path / "venv")[1]}

    right, hit = ("0.8.5", "not_hit"), ("0.8.0", "hit")
    name = "Name: liger-kernel\n"
    assert answers("liger_kernel-0.8.5.dist-info", f"{name}Version: 0.8.0\n") == {right, hit}
    assert answers("liger_kernel-0.8.0.dist-info", f"{name}Version: 0.8.5\n") == {right, hit}
    assert answers("x-1.dist-info", f"Name: x\n{name}Version: 0.8.0\n") >= {hit}
    assert answers("liger-kernel-0.8.0.DIST-INFO", f"{name}Version: 0.8\n\nVersion: 0.8.5\n".replace("\n", "\r")) == {("0.8", "hit")}
    assert answers("liger_kernel-0.8.0-py3.12.egg-info", f"{name}Version: 0.8.0\n") == {hit}
    (site(tmp_path / "venv") / "x-1.dist-info").mkdir()
    (site(tmp_path / "venv") / "x-1.dist-info/METADATA").symlink_to("/proc/kmsg")
    assert ["x-1.dist-info/METADATA: cannot be read" in line for line in document(tmp_path / "venv")[1]["unread"]] == [True]


def test_a_lock_of_another_language_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Cargo.lock").write_text('[[package]]\nname = "a"\nversion = "1"\nsource = "registry+https://example.org"\n')
    found = scan(tmp_path / "Cargo.lock")
    assert found.returncode == 2 and "source must be a table" in found.stderr
    wheel = 'wheels = [{ url = "https://x/liger_kernel-0.8.0-py3-none-any.whl" }]\n'
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.5")) + wheel)
    assert states(tmp_path / "uv.lock")[0] == 1


def test_the_spellings_of_the_fuzz_lane_are_those_of_pip(tmp_path: Path) -> None:
    """pip's own parser reads each line of a sample, and finds the package and its version."""
    pytest.importorskip("pip._internal")
    from pip._internal.req.constructors import install_req_from_editable, install_req_from_line
    from pip._internal.req.req_file import parse_requirements
    from pip._vendor.packaging.utils import canonicalize_name

    logging.getLogger("pip").setLevel(logging.ERROR)
    env = {**os.environ, "PATCHBENCH_SPELLINGS": str(tmp_path / "lines.json")}
    subprocess.run([BIN / "scan_fuzz_test", "--gtest_filter=ScanFuzz.LinesForPip"], env=env, check=True, capture_output=True)
    lines = json.loads((tmp_path / "lines.json").read_text())
    assert len(lines) == 2000
    for one in lines:
        (tmp_path / "r.txt").write_text(one["line"] + "\n")
        (parsed,) = parse_requirements(str(tmp_path / "r.txt"), session=None)
        read = install_req_from_editable if parsed.is_editable else install_req_from_line
        requirement = read(parsed.requirement).req
        assert canonicalize_name(requirement.name) == one["name"], one
        assert requirement.specifier.contains(one["version"], prereleases=True), one

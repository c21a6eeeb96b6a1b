"""The feed: `export --format osv --zip`, and `serve`, which pip-audit asks."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from answers import PROGRAM, ROOT
from scan_test import document

LIGER, FROZEN = "PATCHBENCH-09-liger-kernel", "PATCHBENCH-25-liger-kernel"
MIB = 1 << 20


def started(*words: str, before: Callable[[], None] | None = None) -> tuple[subprocess.Popen, int]:
    """The process, and its port once it listens."""
    process = subprocess.Popen(
        [PROGRAM, "--json", "serve", "--port", "0", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "}\n")
    return process, json.loads("".join(lines) + "}")["port"]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    process, port = started()
    yield port
    process.terminate()
    assert process.wait(timeout=30) == 0


def asked(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body if body is None or isinstance(body, str | bytes) else json.dumps(body))
    response = connection.getresponse()
    text = response.read().decode()
    return response.status, json.loads(text) if response.headers["Content-Type"] == "application/json" else text


def query(name: str, version: str) -> dict[str, Any]:
    return {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}


def ids(port: int, body: Any) -> set[str]:
    status, found = asked(port, "POST", "/v1/query", body)
    assert status == 200, found
    return {one["id"] for one in found.get("vulns", [])}


# --- the archive


def archive(tmp_path: Path, *words: str) -> tuple[bytes, dict[str, Any]]:
    file = tmp_path / "db/osv-scanner/PyPI/all.zip"
    subprocess.run([PROGRAM, "export", *words, "--format", "osv", "--zip", "-o", file], check=True, capture_output=True)
    data = file.read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as found:
        assert found.testzip() is None
        return data, {name: json.loads(found.read(name)) for name in found.namelist()}


def test_the_archive_has_one_file_a_record(tmp_path: Path) -> None:
    data, files = archive(tmp_path)
    printed = subprocess.run([PROGRAM, "export", "--format", "osv"], check=True, capture_output=True, text=True).stdout
    assert files == {f"{one['id']}.json": one for one in json.loads(printed)}
    assert {f"{LIGER}.json", f"{FROZEN}.json"} <= files.keys()
    (affected,) = files[f"{LIGER}.json"]["affected"]
    assert affected["package"]["name"] == "liger-kernel" and {"fixed": "0.8.2"} in affected["ranges"][0]["events"]
    of_smem = {package["name"] for one in files.values() if one["database_specific"]["slug"] == "mamba3_mimo_smem_2d"
               for package in (entry["package"] for entry in one["affected"])}  # fmt: skip
    assert of_smem == {"tilelang"}, "of mamba-ssm scan says that the class harms no run of the release"
    assert archive(tmp_path)[0] == data, "the same records make the same bytes"
    assert archive(tmp_path, "liger_flce_none_bwd")[1].keys() == {f"{LIGER}.json"}


def test_the_zip_program_takes_the_archive(tmp_path: Path) -> None:
    data, _ = archive(tmp_path)
    broken = bytearray(data)
    broken[data.index(b'"schema_version"')] ^= 1
    with zipfile.ZipFile(io.BytesIO(bytes(broken))) as found, pytest.raises(zipfile.BadZipFile):
        for name in found.namelist():
            found.read(name)


@pytest.mark.parametrize("words", [["--format", "csv", "--zip", "-o", "x.zip"], ["--format", "osv", "--zip"]])
def test_wrong_words_of_export(tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run([PROGRAM, "export", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("patchbench: --zip ") and not list(tmp_path.iterdir())


# --- the server


def test_a_release_has_what_scan_says_of_it(port: int, tmp_path: Path) -> None:
    """Every release of every package; scan is asked about one package at a time, as serve is."""
    table = json.loads(subprocess.run([PROGRAM, "export", "--format", "verdicts"], check=True, capture_output=True, text=True).stdout)
    releases = sorted({(one["package"], row["version"]) for pack in table["packs"].values() for one in pack["upstreams"]
                       for row in one["releases"] if not row["version"].startswith("git:")})  # fmt: skip
    status, found = asked(port, "POST", "/v1/querybatch", {"queries": [query(*release) for release in releases]})
    assert status == 200 and len(found["results"]) == len(releases) > 100
    served = {release: {one["id"] for one in row.get("vulns", [])} for release, row in zip(releases, found["results"], strict=True)}
    said: dict[tuple[str, str], set[str]] = {release: set() for release in releases}
    for package in sorted({name for name, _ in releases}):
        file = tmp_path / f"{package}.txt"
        file.write_text("".join(f"{name}=={version}\n" for name, version in releases if name == package))
        for one in document(file)[1]["answers"]:
            if one["state"] == "hit" or (one["state"] == "unknown" and one["classes"]):
                said[package, one["version"]].add(one["id"])
    assert served == said and sum(map(len, said.values())) > 100


def test_names_are_those_of_pypi(port: int) -> None:
    for name in ("liger-kernel", "Liger_Kernel", "LIGER.kernel"):
        assert ids(port, query(name, "0.8.0")) == {LIGER, FROZEN}, name
    assert ids(port, query("liger-kernel", "0.8.2")) == {FROZEN}
    assert ids(port, query("liger-kernel", "0.8.0.0")) == {LIGER, FROZEN}, "as PEP 440 compares"
    assert ids(port, {"package": {"purl": "pkg:pypi/Liger_Kernel@0.8.0"}}) == {LIGER, FROZEN}
    assert ids(port, {"package": {"name": "Liger_Kernel", "ecosystem": "PyPI"}}) == {LIGER, FROZEN}, "all of a package"
    for other in (query("numpy", "2.0.0"), query("liger-kernel", "99.0"), {"commit": "a" * 40},
                  {"package": {"name": "liger-kernel", "ecosystem": "npm"}, "version": "0.8.0"}):  # fmt: skip
        assert ids(port, other) == set(), other


def test_one_record_by_its_id(port: int) -> None:
    status, record = asked(port, "GET", f"/v1/vulns/{LIGER}")
    assert (status, record["id"]) == (200, LIGER) and "0.8.1" in record["affected"][0]["versions"]
    assert asked(port, "GET", "/v1/vulns/PATCHBENCH-99-none")[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "why"),
    [
        ("POST", "/v1/query", "{", 400, "request"),
        ("POST", "/v1/query", "", 400, "request"),
        ("POST", "/v1/query", "[]", 400, "object"),
        ("POST", "/v1/query", {}, 400, "package"),
        ("POST", "/v1/query", {"package": {"name": "a", "ecosystem": "PyPI"}, "vresion": "1"}, 400, "vresion"),
        ("POST", "/v1/query", {"package": "liger-kernel", "version": "1"}, 400, "package"),
        ("POST", "/v1/query", {"package": {"name": "../x", "ecosystem": "PyPI"}, "version": "1"}, 400, "name on PyPI"),
        ("POST", "/v1/query", {"package": {"purl": "liger-kernel"}}, 400, "package URL"),
        ("POST", "/v1/query", {"package": {"purl": "pkg:pypi/a@1"}, "version": "2"}, 400, "twice"),
        ("POST", "/v1/query", b'{"package": "\xff"}', 400, "request"),
        ("POST", "/v1/querybatch", {"queries": {}}, 400, "array"),
        ("POST", "/v1/querybatch", {"queries": [7]}, 400, "object"),
        ("POST", "/v1/querybatch", {"queries": [query("a", "1")] * 1001}, 400, "1000"),
        ("GET", "/v1/query", None, 405, "POST"),
        ("POST", f"/v1/vulns/{LIGER}", {}, 405, "GET"),
        ("GET", "/", None, 404, "/v1/query"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_in_one_line(port: int, method: str, path: str, body: Any, status: int, why: str) -> None:
    got, refusal = asked(port, method, path, body)
    assert got == status and why in refusal["message"] and "\n" not in refusal["message"], refusal
    assert isinstance(refusal["code"], int)


def raw(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(data)
        return one.recv(4096)


def test_what_is_too_large_or_no_http_is_refused(port: int) -> None:
    head = "POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
    assert b" 413 " in raw(port, head.format(2 * MIB).encode() + b" " * 4096)
    assert b" 413 " in raw(port, head.format(2**62).encode())
    assert b" 200 " not in raw(port, b"\x00\x01\x02 nonsense\r\n\r\n")
    assert b" 200 " not in raw(port, head.format(-5).encode())
    assert b" 200 " not in raw(port, b"GET /v1/vulns/" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n")
    chunked = b"POST /v1/query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"%x\r\n" % (2 * MIB) + b" " * (2 * MIB)
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it may hang up
        assert b" 200 " not in raw(port, chunked)
    assert ids(port, query("liger-kernel", "0.8.0")) == {LIGER, FROZEN}, "and it goes on"


def test_slow_clients_hold_up_nobody(port: int) -> None:
    slow = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(50)]
    for at, one in enumerate(slow):
        one.sendall((b"", b"POST /v1/q", b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")[at % 3])
    assert ids(port, query("liger-kernel", "0.8.0")) == {LIGER, FROZEN}
    assert slow[2].recv(4096) == b"", "a request that does not go on is closed"
    for one in slow:
        one.close()


def test_more_clients_than_descriptors_wait() -> None:
    process, port = started(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)))
    many = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(60)]
    assert ids(port, query("liger-kernel", "0.8.0")) == {LIGER, FROZEN}, "when the others are closed"
    for one in many:
        one.close()
    process.terminate()
    assert process.communicate(timeout=30)[1] == "" and process.returncode == 0


def test_only_this_machine_can_ask() -> None:
    process, port = started()
    try:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert [row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"] == [f"0100007F:{port:04X}"]
        taken = subprocess.run([PROGRAM, "serve", "--port", str(port)], capture_output=True, text=True, timeout=60)
        assert taken.returncode == 4 and "--port 0" in taken.stderr and taken.stderr.count("\n") == 1
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


def test_an_unknown_release_is_named_once() -> None:
    process, port = started()
    for _ in range(2):
        assert ids(port, query("liger-kernel", "99.0")) == set()
        assert ids(port, query("liger-kernel", "0.8.0")) == {LIGER, FROZEN}
    process.terminate()
    said = process.communicate(timeout=30)[1].splitlines()
    assert len(said) == 1 and "liger-kernel 99.0: a pack does not know" in said[0] and "patchbench scan" in said[0]


@pytest.mark.parametrize("words", [["--port", "65536"], ["--port", "x"], ["--db", "none.json"], ["8080"]])
def test_wrong_words_of_serve(words: list[str]) -> None:
    done = subprocess.run([PROGRAM, "serve", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


# --- a real client


def test_pip_audit_prints_our_identifiers_and_right_releases(port: int, tmp_path: Path) -> None:
    lock = ROOT / "env/locks/pip-audit.txt"
    named = subprocess.run([sys.executable, ROOT / "env/fetch.py", "names", lock], capture_output=True, text=True, check=True)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench/env"
    site = next((cache / name for name in named.stdout.split() if f"-cp3{sys.version_info[1]}-" in name and (cache / name).exists()), None)
    if site is None:
        pytest.skip("pip-audit is not in the cache; run env/bootstrap.sh --tests")
    (tmp_path / "r.txt").write_text("liger-kernel==0.8.0\nnumpy==2.0.0\n")
    words = [sys.executable, "-m", "pip_audit", "-r", "r.txt", "--no-deps", "--disable-pip", "-s", "osv", "-f", "json",
             "--osv-url", f"http://127.0.0.1:{port}/v1/query", "--cache-dir", tmp_path / "cache", "--progress-spinner", "off"]  # fmt: skip
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    found = {one["name"]: {v["id"]: v["fix_versions"] for v in one["vulns"]} for one in json.loads(done.stdout)["dependencies"]}
    assert found == {"liger-kernel": {LIGER: ["0.8.2"], FROZEN: []}, "numpy": {}}

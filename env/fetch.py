#!/usr/bin/env python3
"""The one downloader: files of a PEP 503 index, by locked sha256, into the cache.

  fetch.py file PROJECT FILENAME SHA256     print the path of that one verified file
  fetch.py env LOCK [--tag cp311]           print the folder into which every wheel of LOCK is unpacked; a bar on
                                            stderr shows size, rate and time left
  fetch.py size PROJECT FILENAME            print how many bytes that file has on the index
  fetch.py index PROJECT...                 print {PROJECT: its PEP 691 page}: files with digest and upload time
  fetch.py unzip FILE DIR                   unpack one wheel, .zip or .tar.gz into an empty folder
  fetch.py read FILE PATH...                print {PATH: its text in that archive, or null}
  fetch.py pins PINS.JSON [UPSTREAM...]     fetch every release of the upstreams that is not cached; without
                                            names: the red pins and the newest releases of the packs with a
                                            reproducer, and the releases that their tests need
  fetch.py names LOCK...                    print the folders that the locks' environments have or would have
  fetch.py verify DIR                       re-hash an unpacked environment against what was unpacked
  fetch.py lock OUT REQUIREMENT...          write a lock for cp311, cp312 and cp313 (maintainers; needs pip)

The standard library alone, so that a bare machine can run it. Honours PIP_INDEX_URL (or UV_INDEX_URL),
https_proxy, SSL_CERT_FILE and XDG_CACHE_HOME. An interrupted download resumes; two processes may run at
once; nothing is visible in the cache under its final name before its digest was checked.
Exit: 0 done, 1 the network or the index failed, 2 usage, 3 a digest differs.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import hashlib
import html.parser
import http.client
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench"
INDEX = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_INDEX_URL") or "https://pypi.org/simple"
TAGS = ("cp311", "cp312", "cp313")
PLATFORM = re.compile(r"(^any$|(manylinux\w*|linux)_x86_64$)")


# Of the environment that is being fetched; None for a lone file.
PROGRESS: Progress | None = None


class FetchError(Exception):
    """What ends the work: `code` is this program's exit status."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


def say(text: str) -> None:
    """One progress line on stderr."""
    if PROGRESS:
        PROGRESS.clear()
    print(f"fetch: {text}", file=sys.stderr, flush=True)


class Progress:
    """How far a fetch of several files is: a bar on a terminal, else a line every few seconds."""

    # Of the lines; a program that draws the bar itself asks for more of them.
    EVERY_S = float(os.environ.get("PATCHBENCH_BAR_EVERY_S", "5"))

    def __init__(self, total: int):
        self.total, self.have, self.fetched, self.started = total, 0, 0, time.monotonic()
        self.shown, self.lock, self.is_terminal = self.started, threading.Lock(), sys.stderr.isatty()

    def add(self, fetched: int, had: int = 0) -> None:
        """Counts bytes that came now, and bytes that an earlier run left."""
        with self.lock:
            self.have, self.fetched = self.have + fetched + had, self.fetched + fetched
            now = time.monotonic()
            if now - self.shown < (0.2 if self.is_terminal else self.EVERY_S):
                return
            self.shown = now
            line = self.text(now)
        if self.is_terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def text(self, now: float) -> str:
        """fetch: [#####.....] 259 of 518 MiB, 45.2 MiB/s, 6 s left"""
        rate = self.fetched / max(now - self.started, 1e-6)
        have, total = self.have / 2**20, self.total / 2**20
        if self.total == 0:
            return f"fetch: {have:.0f} MiB, {rate / 2**20:.1f} MiB/s"
        filled = min(20, int(20 * have / total))
        left = max(self.total - self.have, 0) / rate if rate else 0
        clock = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min"
        return f"fetch: [{'#' * filled}{'.' * (20 - filled)}] {have:.0f} of {total:.0f} MiB, {rate / 2**20:.1f} MiB/s, {clock} left"

    def clear(self) -> None:
        """Takes the bar off the terminal, so that a line of text starts on a clear one."""
        if self.is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Links(html.parser.HTMLParser):
    """The anchors of one PEP 503 project page: file name -> (address, sha256)."""

    def __init__(self, page: str):
        super().__init__()
        self.page, self.files = page, {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") if tag == "a" else None
        if href:
            url, _, fragment = urllib.parse.urljoin(self.page, href).partition("#")
            name = urllib.parse.unquote(url.rsplit("/", 1)[-1])
            self.files[name] = (url, fragment.partition("sha256=")[2])


def opened(url: str, headers: dict[str, str] | None = None):
    """An open response; three tries, then FetchError(1)."""
    for attempt in range(3):
        try:
            return urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=60)
        except (urllib.error.URLError, TimeoutError, ConnectionError) as e:
            if isinstance(e, urllib.error.HTTPError) and e.code in (404, 403, 416):
                raise FetchError(1, f"{url}: HTTP {e.code}") from e
            if attempt == 2:
                raise FetchError(1, f"{url}: {e}; check the network, https_proxy and SSL_CERT_FILE") from e
            time.sleep(1 + attempt)
    raise AssertionError("unreachable")


def links(project: str) -> dict[str, tuple[str, str]]:
    """Every file the index offers for a project: name -> (address, sha256 or '')."""
    page = f"{INDEX.rstrip('/')}/{re.sub(r'[-_.]+', '-', project).lower()}/"
    with opened(page, {"Accept": "text/html"}) as r:
        parser = Links(r.geturl())
        parser.feed(r.read().decode())
    return parser.files


def index_pages(projects: list[str]) -> dict[str, dict]:
    """What the index says of each project, as PEP 691 JSON; FetchError(1) if it does not speak it."""
    pages = {}
    for project in projects:
        page = f"{INDEX.rstrip('/')}/{re.sub(r'[-_.]+', '-', project).lower()}/"
        with opened(page, {"Accept": "application/vnd.pypi.simple.v1+json"}) as r:
            try:
                pages[project] = json.loads(r.read())
            except json.JSONDecodeError as e:
                raise FetchError(1, f"{page}: the index does not answer in JSON (PEP 691)") from e
    return pages


def address_of(project: str, filename: str) -> str:
    """Where the index has one file of a project; FetchError(1) if it has none of that name."""
    files = links(project)
    if filename not in files:
        raise FetchError(1, f"{project}: the index {INDEX} has no file {filename}")
    return files[filename][0]


@contextlib.contextmanager
def locked(path: Path):
    """An exclusive lock for one cache entry, so that two processes do the work once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def digest_of(path: Path) -> str:
    """SHA-256 of a file, hex."""
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20):
            h.update(chunk)
    return h.hexdigest()


def take(r, out) -> None:
    """Copies a response to a file as it comes; what came is counted."""
    while chunk := r.read(1 << 18):
        out.write(chunk)
        if PROGRESS:
            PROGRESS.add(len(chunk))


def download(url: str, part: Path) -> None:
    """Appends what is missing of `url` to `part` (HTTP Range); restarts where the server ignores ranges.

    FetchError(1) after five breaks in a row that brought nothing new; the next run goes on from there.
    """
    breaks, before = 0, part.stat().st_size if part.exists() else 0
    if PROGRESS:
        PROGRESS.add(0, had=before)
    while breaks < 5:
        have = part.stat().st_size if part.exists() else 0
        breaks, before = (0 if have > before else breaks + 1), have
        try:
            response = opened(url, {"Range": f"bytes={have}-"} if have else None)
        except FetchError as e:
            if have and "HTTP 416" in str(e):
                return
            raise
        with response as r, open(part, "ab" if have and r.status == 206 else "wb") as out:
            want = out.tell() + int(r.headers.get("Content-Length") or 0)
            try:
                take(r, out)
            except (OSError, TimeoutError, http.client.HTTPException) as e:
                say(f"{part.name}: interrupted at {out.tell()} bytes ({e}); resuming")
                continue
        if part.stat().st_size >= want:
            return
        say(f"{part.name}: interrupted at {part.stat().st_size} of {want} bytes; resuming")
    raise FetchError(1, f"{url}: the connection broke five times; run the command again to resume")


def fetch_file(project: str, filename: str, sha256: str, url: str = "") -> Path:
    """The path of one file of the index, whose digest was checked now; refetched if the cached one differs."""
    final = CACHE / "files" / sha256 / filename
    with locked(CACHE / "files" / f"{sha256}.lock"):
        if final.exists():
            if digest_of(final) == sha256:
                if PROGRESS:
                    PROGRESS.add(0, had=final.stat().st_size)
                return final
            say(f"{filename}: the cached file's digest differs from the lock; fetching it again")
            final.unlink()
        url = url or address_of(project, filename)
        part = final.parent / (filename + ".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        for _attempt in range(2):
            download(url, part)
            got = digest_of(part)
            if got == sha256:
                os.replace(part, final)
                return final
            part.unlink()
            say(f"{filename}: sha256 is {got[:12]}…, the lock says {sha256[:12]}…; discarded")
        raise FetchError(3, f"{filename}: sha256 {got} is not the locked {sha256}; nothing was kept")


def file_size(project: str, filename: str) -> int:
    """Bytes of one file of the index, without fetching it."""
    with opened(address_of(project, filename), {"Range": "bytes=0-0"}) as r:
        total = r.headers.get("Content-Range", "").rpartition("/")[2] or r.headers.get("Content-Length", "")
    if not total.isdigit():
        raise FetchError(1, f"{filename}: the index does not say how large it is")
    return int(total)


def read_lock(lock: Path) -> list[tuple[str, str, set[str]]]:
    """A lock's rows: (project, version, digests). Format: pip's `--require-hashes` requirement lines. A line `-r BASE.txt` names the lock
    that the environment lies over; its rows are that lock's own."""
    rows = []
    text = lock.read_text().replace("\\\n", " ")
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line or re.fullmatch(r"-r [\w.-]+\.txt", line):
            continue
        m = re.fullmatch(r"([\w.-]+)==(\S+)((?:\s+--hash=sha256:[0-9a-f]{64})+)", line)
        if not m:
            raise FetchError(2, f"{lock}:{number}: want NAME==VERSION --hash=sha256:…, got: {line[:60]}")
        rows.append((m[1], m[2], set(re.findall(r"sha256:([0-9a-f]{64})", m[3]))))
    return rows


def bytes_to_fetch(lock: Path) -> int:
    """What the lock says of its size, in bytes; 0 where it says nothing."""
    said = re.search(r"^# Size: (\d+) bytes to fetch", lock.read_text(), re.M)
    return int(said[1]) if said else 0


def fits(filename: str, tag: str) -> bool:
    """Whether a wheel's name says that CPython `tag` on x86-64 Linux takes it."""
    parts = filename[:-4].split("-")
    pythons, abis, platforms = (p.split(".") for p in parts[-3:])
    number = int(tag[3:])
    ok_python = any(p in ("py3", tag) or ("abi3" in abis and p.startswith("cp3") and int(p[3:]) <= number) for p in pythons)
    return ok_python and any(a in ("none", "abi3", tag) for a in abis) and any(map(PLATFORM.search, platforms))


def upstreams_run(root: Path) -> list[str]:
    """The upstreams that packs with a reproducer name, each once; not those that an environment holds."""
    manifests = [json.loads(p.read_text()) for p in sorted(root.glob("packs/*/manifest.json"))]
    run = [m for m in manifests if (root / "repro" / m["slug"] / "repro.cpp").exists()]
    uses = [use for m in run for use in m["upstreams"] if not use.get("from_environment")]
    return list(dict.fromkeys(use["name"] for use in uses))


def releases_needed(root: Path, upstreams: dict[str, dict]) -> dict[str, set[str]]:
    """Upstream -> versions that a first use and the tests need: red pins, the newest releases, `test_releases` of the manifests
    ("*": all), and the archives that the mitigations' data were read from. FetchError(2) for a release that is not locked."""
    needed = {name: {r["version"] for r in upstreams[name]["releases"][-1:]} for name in upstreams_run(root)}

    def add(name: str, versions: list[str], source: Path) -> None:
        locked = {r["version"] for r in upstreams.get(name, {"releases": []})["releases"]}
        missing = [v for v in versions if v not in locked]
        if missing:
            raise FetchError(2, f"{source}: env/pins.json does not lock {name} {missing[0]}")
        needed.setdefault(name, set()).update(versions)

    for path in sorted(root.glob("packs/*/manifest.json")):
        for use in json.loads(path.read_text())["upstreams"]:
            if use["name"] in needed and "red_pin" in use and not use["red_pin"].startswith("git:"):
                add(use["name"], [use["red_pin"]], path)
            if named := use.get("test_releases"):
                every = [r["version"] for r in upstreams.get(use["name"], {"releases": []})["releases"]]
                add(use["name"], every if named == ["*"] else named, path)
    for path in sorted(root.glob("mitigations/patchbench_mitigations/data/*.json")):
        document = json.loads(path.read_text())
        add(document["package"], [v for v, one in document["releases"].items() if "mitigated" in one], path)
    return needed


def fetch_pins(pins: Path, names: list[str]) -> None:
    """Fetches releases into the cache: every release of the named upstreams, or without names what releases_needed() lists."""
    upstreams = json.loads(pins.read_text())["upstreams"]
    needed = {} if names else releases_needed(pins.parent.parent, upstreams)
    for name in names or needed:
        if name not in upstreams:
            raise FetchError(2, f"{pins}: no upstream {name}; one of: {', '.join(sorted(upstreams))}")
        project, releases = upstreams[name]["project"], upstreams[name]["releases"]
        wanted = [r for r in releases if not needed or r["version"] in needed[name]]
        missing = [r for r in wanted if not (CACHE / "files" / r["sha256"] / r["file"]).exists()]
        known = links(project) if missing else {}

        def one(release: dict[str, str], known: dict[str, tuple[str, str]] = known, project: str = project) -> None:
            fetch_file(project, release["file"], release["sha256"], known.get(release["file"], ("", ""))[0])

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(one, missing))
        rest = len(releases) - len(wanted)
        say(
            f"{name}: {len(missing)} of {len(wanted)} releases fetched, the others were cached"
            + (f"; {rest} not needed yet" if rest else "")
        )


def installed_name(entry: str) -> str:
    """Where an installer puts an entry of a wheel, below the folder of packages."""
    return re.sub(r"^[^/]+\.data/scripts/", "bin/", re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", entry))


def unpack(wheel: Path, into: Path) -> dict[str, str]:
    """Unzips a wheel as an installer would; returns path -> sha256 of each file written."""
    written = {}
    with zipfile.ZipFile(wheel) as z:
        for info in z.infolist():
            name = installed_name(info.filename)
            target = (into / name).resolve()
            if not target.is_relative_to(into.resolve()):
                raise FetchError(3, f"{wheel.name}: entry {info.filename!r} leaves the folder")
            if info.is_dir():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            h = hashlib.sha256()
            with z.open(info) as src, open(target, "wb") as dst:
                while chunk := src.read(1 << 20):
                    h.update(chunk)
                    dst.write(chunk)
            mode = info.external_attr >> 16
            target.chmod(0o755 if mode & stat.S_IXUSR or name.startswith("bin/") else 0o644)
            written[name] = h.hexdigest()
    return written


def unpack_tar(archive: Path, into: Path) -> None:
    """Unpacks an sdist; FetchError(3) on an entry or a link that leaves the folder, or on a device."""
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            target = (into / entry.name).resolve()
            if not target.is_relative_to(into.resolve()):
                raise FetchError(3, f"{archive.name}: entry {entry.name!r} leaves the folder")
            if entry.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if entry.issym():
                if not (target.parent / entry.linkname).resolve().is_relative_to(into.resolve()):
                    raise FetchError(3, f"{archive.name}: link {entry.name!r} leaves the folder")
                target.symlink_to(entry.linkname)
            elif entry.isfile() or entry.islnk():
                with tar.extractfile(entry) as src, open(target, "xb") as dst:
                    shutil.copyfileobj(src, dst, 1 << 20)
                target.chmod(0o755 if entry.mode & stat.S_IXUSR else 0o644)
            else:
                raise FetchError(3, f"{archive.name}: entry {entry.name!r} is neither file, folder nor link")


def read_texts(archive: Path, paths: list[str]) -> dict[str, str | None]:
    """The texts of some files of a wheel or an sdist, without unpacking the others; FetchError(2) for a broken archive."""
    texts: dict[str, str | None] = dict.fromkeys(paths)
    try:
        if archive.name.endswith(".tar.gz"):
            with tarfile.open(archive, "r:gz") as tar:
                for entry in tar:
                    if entry.name in texts and entry.isfile():
                        texts[entry.name] = tar.extractfile(entry).read().decode()
        else:
            with zipfile.ZipFile(archive) as z:
                for info in z.infolist():
                    if (name := installed_name(info.filename)) in texts:
                        texts[name] = z.read(info).decode()
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error, UnicodeDecodeError) as e:
        raise FetchError(2, f"{archive}: cannot be read: {e}") from e
    return texts


def unzip(archive: Path, into: Path) -> None:
    """Unpacks one archive into an empty folder; FetchError(2) for a broken one or another kind."""
    into.mkdir(parents=True, exist_ok=True)
    if any(into.iterdir()):
        raise FetchError(2, f"{into}: the folder to unpack into is not empty")
    try:
        if archive.name.endswith(".tar.gz"):
            unpack_tar(archive, into)
        elif archive.name.endswith((".whl", ".zip")):
            unpack(archive, into)
        else:
            raise FetchError(2, f"{archive.name}: not a .whl, .zip or .tar.gz")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error) as e:
        raise FetchError(2, f"{archive}: cannot be unpacked: {e}") from e


def env_folder(lock: Path, tag: str) -> Path:
    """Where the environment of a lock lies: its content is in the name."""
    rows = read_lock(lock)
    address = hashlib.sha256(json.dumps([tag, sorted((n, v, sorted(h)) for n, v, h in rows)]).encode()).hexdigest()
    return CACHE / "env" / f"{lock.stem}-{tag}-{address[:12]}"


def fetch_env(lock: Path, tag: str) -> Path:
    """The folder of an environment: every wheel of the lock that fits `tag`, unpacked once, by content address."""
    global PROGRESS
    rows, final = read_lock(lock), env_folder(lock, tag)
    if (final / "patchbench-env.json").exists():
        return final
    with locked(CACHE / "env" / f"{final.name}.lock"):
        if (final / "patchbench-env.json").exists():
            return final
        tmp = final.with_name(f"{final.name}.tmp")  # a suffix would be all that follows the dot of torch-2.11
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        PROGRESS = Progress(bytes_to_fetch(lock))
        started, done = time.monotonic(), 0

        def one(row: tuple[str, str, set[str]]) -> Path:
            nonlocal done
            project, version, digests = row
            for name, (url, sha256) in links(project).items():
                if sha256 in digests and name.endswith(".whl") and fits(name, tag):
                    path = fetch_file(project, name, sha256, url)
                    done += 1
                    size = path.stat().st_size / 2**20
                    say(f"[{done}/{len(rows)}] {name} ({size:.1f} MiB, {time.monotonic() - started:.0f} s)")
                    return path
            raise FetchError(1, f"{lock.name}: {project}=={version} has no locked wheel for {tag} on {INDEX}")

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            wheels = list(pool.map(one, rows))
        say(f"unpacks {len(wheels)} wheels")
        PROGRESS = None
        files: dict[str, str] = {}
        for row, wheel in zip(rows, wheels, strict=True):
            try:
                files.update(unpack(wheel, tmp))
            except FileNotFoundError:  # a run for another environment had the same wheel, and threw it away
                files.update(unpack(one(row), tmp))
        record = {"lock": lock.name, "tag": tag, "wheels": sorted(w.name for w in wheels), "files": files}
        (tmp / "patchbench-env.json").write_text(json.dumps(record, sort_keys=True))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(tmp, final)
        for wheel in wheels:
            shutil.rmtree(wheel.parent, ignore_errors=True)
    return final


def verify(folder: Path) -> None:
    """Re-hashes every unpacked file; FetchError(3) names the first that differs, is missing or was added."""
    marker = folder / "patchbench-env.json"
    if not marker.exists():
        raise FetchError(2, f"{folder}: not an unpacked environment (no patchbench-env.json)")
    files = json.loads(marker.read_text())["files"]
    # Bytecode that an interpreter wrote next to its source is not part of a wheel; the files of a wheel are checked.
    present = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    extra = {name for name in present - set(files) - {marker.name} if "__pycache__" not in Path(name).parts}
    if extra:
        raise FetchError(3, f"{folder}: {min(extra)} was added after unpacking; remove the folder to refetch")
    for name, want in files.items():
        if name not in present or digest_of(folder / name) != want:
            raise FetchError(3, f"{folder}: {name} differs from what was unpacked; remove the folder to refetch")


def write_lock(out: Path, requirements: list[str]) -> None:
    """Resolves the requirements once per interpreter tag with pip and writes one lock for all of them."""
    rows: dict[tuple[str, str], set[str]] = {}
    for tag in TAGS:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--report", "-", "--only-binary=:all:", "--python-version", f"3.{tag[3:]}", "--target", "/nonexistent"]
        command += [f"--platform=manylinux_2_{n}_x86_64" for n in (36, 34, 31, 28, 27, 26, 25, 24, 18, 17, 12, 5)]
        command += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64", "--platform=linux_x86_64"]
        report = json.loads(subprocess.run(command + requirements, check=True, stdout=subprocess.PIPE).stdout)
        for item in report["install"]:
            key = (item["metadata"]["name"].lower(), item["metadata"]["version"])
            rows.setdefault(key, set()).add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    head = f"# Written by: env/fetch.py lock {out.name} {' '.join(requirements)}\n"
    body = "".join(f"{n}=={v}" + "".join(f" \\\n    --hash=sha256:{h}" for h in sorted(hs)) + "\n" for (n, v), hs in sorted(rows.items()))
    out.write_text(head + body)


def main(argv: list[str]) -> int:
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    if "--tag" in argv:
        at = argv.index("--tag")
        tag, argv = argv[at + 1], argv[:at] + argv[at + 2 :]
    try:
        match argv:
            case ["file", project, filename, sha256]:
                print(fetch_file(project, filename, sha256))
            case ["env", lock]:
                print(fetch_env(Path(lock), tag))
            case ["size", project, filename]:
                print(file_size(project, filename))
            case ["index", *projects] if projects:
                print(json.dumps(index_pages(projects)))
            case ["unzip", archive, folder]:
                unzip(Path(archive), Path(folder))
            case ["read", archive, *paths] if paths:
                print(json.dumps(read_texts(Path(archive), paths)))
            case ["pins", pins, *names]:
                fetch_pins(Path(pins), names)
            case ["names", *locks] if locks:
                print(*(env_folder(Path(lock), t).name for lock in locks for t in TAGS), sep="\n")
            case ["verify", folder]:
                verify(Path(folder))
            case ["lock", out, *requirements] if requirements:
                write_lock(Path(out), requirements)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except FetchError as e:
        print(f"fetch: {e}", file=sys.stderr)
        return e.code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

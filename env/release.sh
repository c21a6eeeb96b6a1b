#!/usr/bin/env bash
# Packs the wheel `patchbench` as an archive for machines without pip: env/release.sh [WHEEL [FOLDER]]
# FOLDER (default: dist) gets patchbench-VERSION-linux-x86_64.tar.gz with the static program, its data, the licences and a README.
# Without WHEEL env/wheels.sh builds it. One wheel always gives the same bytes. env/try_wheels.sh tries the archive.
# Exit: 0 written (its sha256 and path on stdout), 1 not.
set -u
umask 022
root=$(cd "$(dirname "$0")/.." && pwd)
wheel=${1:-$("$root/env/wheels.sh" patchbench)}
[ -f "$wheel" ] || { echo "release: no wheel of patchbench${wheel:+: $wheel}" >&2; exit 1; }
archive=$(python3 - "$wheel" "${2:-$root/dist}" <<'END'
import gzip
import io
import sys
import tarfile
import zipfile
from pathlib import Path

README = """Patchbench {version} for Linux on x86-64. It needs no Python and no shared library.
bin/patchbench scan FILE says which known bugs of GPU training are in a lock, a requirements file, an SBOM or a folder of packages.
Exit status 1 is a hit. bin/patchbench --help lists the other verbs; licenses/ has the licences.
"""
wheel, folder = map(Path, sys.argv[1:])
top = "-".join(wheel.name.split("-")[:2])
places = {f"{top}.data/scripts/": "bin/", f"{top}.data/data/": "", f"{top}.dist-info/licenses/": "licenses/"}
files = {"README": README.format(version=top.split("-")[1]).encode()}
with zipfile.ZipFile(wheel) as packed:
    for name in packed.namelist():
        for prefix, place in places.items():
            if name.startswith(prefix) and not name.endswith("/"):
                files[place + name.removeprefix(prefix)] = packed.read(name)
if "bin/patchbench" not in files:
    sys.exit(f"release: {wheel} holds no program")
out = folder / f"{top}-linux-x86_64.tar.gz"
part = out.with_name(out.name + ".part")
# Neither the clock nor the user nor the order in the wheel is in the bytes.
with part.open("wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
    for name in sorted(files):
        member = tarfile.TarInfo(f"{top}/{name}")
        member.size, member.mode = len(files[name]), 0o755 if name.startswith("bin/") else 0o644
        tar.addfile(member, io.BytesIO(files[name]))
part.rename(out)
print(out)
END
) && sha256sum "$archive"

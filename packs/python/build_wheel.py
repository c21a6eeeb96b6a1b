"""The build backend (PEP 517) of this package: a wheel of plain files, written by the standard library alone. The op library is
the file that PATCHBENCH_OPS_LIB names: build/cpu/wheel/libpatchbench_ops.so, or cuda's."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = "patchbench_ops"
HEADERS = ("Metadata-Version: 2.1", "Name: {name}", "Version: {version}", "Summary: {description}", "Requires-Python: {python}")
DETAILS = ("Requires-Dist: torch>=2.11", "License: Apache-2.0", "Description-Content-Type: text/markdown")
# The x of GLIBCXX_3.4.x that a manylinux platform has at most, and its glibc, as auditwheel 6's policy lists them.
STDCXX = {19: 17, 22: 24, 24: 27, 28: 31, 29: 34, 30: 35, 33: 39}


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    return []


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    """Writes the wheel, the same bytes each time; its name. KeyError if PATCHBENCH_OPS_LIB is not set."""
    facts = dict(re.findall(r'^([a-z-]+) = "(.*)"$', (HERE / "pyproject.toml").read_text(encoding="utf-8"), re.M))
    facts["python"] = facts["requires-python"]
    info = f"{PACKAGE}-{facts['version']}.dist-info"
    tag = f"py3-none-manylinux_2_{needed_glibc(Path(os.environ['PATCHBENCH_OPS_LIB']))}_x86_64"
    files = {str(f.relative_to(HERE)): f.read_bytes() for f in sorted((HERE / PACKAGE).glob("**/*.py"))}
    files[f"{PACKAGE}/lib/libpatchbench_ops.so"] = Path(os.environ["PATCHBENCH_OPS_LIB"]).read_bytes()
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    files[f"{info}/METADATA"] = ("\n".join((*HEADERS, *DETAILS)).format(**facts) + "\n\n" + readme).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: patchbench\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    name = f"{PACKAGE}-{facts['version']}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return name


def needed_glibc(library: Path) -> int:
    """The least x of the glibc 2.x that has every symbol version the library asks for, or that comes with a libstdc++ that has."""
    asked = subprocess.run(["readelf", "--version-info", library], capture_output=True, text=True, check=True).stdout
    if "GLIBC_PRIVATE" in asked:
        raise ValueError(f"{library} asks for GLIBC_PRIVATE, which only the glibc that it was built with has: a static librt was linked")
    ours = [int(minor) for minor in re.findall(r"Name: GLIBC_2\.(\d+)", asked)]
    of_stdcxx = max((int(v) for v in re.findall(r"Name: GLIBCXX_3\.4\.(\d+)", asked)), default=0)
    return max([*ours, next(glibc for newest, glibc in STDCXX.items() if of_stdcxx <= newest)])


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

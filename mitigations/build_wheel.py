"""The build backend (PEP 517) of this package: a wheel of plain files, written by the standard library alone, so that
`pip install ./mitigations` needs neither a network nor setuptools. No sdist, no editable install."""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = "patchbench_mitigations"
SHIPPED = ("**/*.py", "data/*.json", "lib/libpatchbench_ops.so")


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    return []


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    """Writes the wheel, the same bytes each time; its name."""
    facts = dict(re.findall(r'^([a-z-]+) = "(.*)"$', (HERE / "pyproject.toml").read_text(encoding="utf-8"), re.M))
    info = f"{PACKAGE}-{facts['version']}.dist-info"
    has_library = (HERE / PACKAGE / "lib/libpatchbench_ops.so").exists()
    tag = "py3-none-linux_x86_64" if has_library else "py3-none-any"
    files = {str(f.relative_to(HERE)): f.read_bytes() for pattern in SHIPPED for f in sorted((HERE / PACKAGE).glob(pattern))}
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    head = [f"Metadata-Version: 2.1\nName: {facts['name']}\nVersion: {facts['version']}\nSummary: {facts['description']}",
            f"Requires-Python: {facts['requires-python']}\nLicense: Apache-2.0\nDescription-Content-Type: text/markdown\n"]  # fmt: skip
    files[f"{info}/METADATA"] = ("\n".join(head) + "\n" + readme).encode()
    purity = str(not has_library).lower()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: patchbench\nRoot-Is-Purelib: {purity}\nTag: {tag}\n".encode()
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    name = f"{PACKAGE}-{facts['version']}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return name


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

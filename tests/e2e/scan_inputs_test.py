"""The kinds of input that `patchbench scan` reads, and those that it refuses in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from scan_test import LIGER, document, install, scan, site, states, uv_lock

PURL = "pkg:pypi/liger-kernel@0.8.0"
SYFT = {
    "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
    "bomFormat": "CycloneDX",
    "specVersion": "1.6",
    "metadata": {"tools": {"components": [{"type": "application", "author": "anchore", "name": "syft"}]}},
    "components": [
        {"bom-ref": "os", "type": "operating-system", "name": "debian", "version": "12"},
        {"bom-ref": "pkg:deb/debian/bash@5.2", "type": "library", "name": "bash", "version": "5.2", "purl": "pkg:deb/debian/bash@5.2"},
        {"bom-ref": f"{PURL}?package-id=1", "type": "library", "name": "liger_kernel", "version": "0.8.0", "purl": PURL,
         "properties": [{"name": "syft:package:language", "value": "python"}]},
    ],
}  # fmt: skip
CDXGEN = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "components": [{"type": "application", "name": "app", "purl": "pkg:pypi/app@1.0", "components": [
        {"group": "", "name": "liger-kernel", "version": "0.8.0", "purl": PURL, "type": "library", "scope": "required",
         "evidence": {"identity": [{"field": "purl", "confidence": 1}]}}]}],
}  # fmt: skip
SPDX = {
    "spdxVersion": "SPDX-2.3",
    "packages": [
        {"name": "/srv/image", "SPDXID": "SPDXRef-root", "downloadLocation": "NOASSERTION"},
        {"name": "liger-kernel", "versionInfo": "0.8.0", "downloadLocation": "NOASSERTION",
         "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": PURL}]},
    ],
}  # fmt: skip
SPDX3 = {
    "@context": "https://spdx.org/rdf/3.0.1/spdx-context.jsonld",
    "@graph": [{"type": "software_Package", "name": "liger-kernel", "software_packageVersion": "0.8.0", "software_packageUrl": PURL}],
}
INPUTS = {
    "uv.lock": uv_lock(("liger-kernel", "0.8.0"), ("torch", "2.11.0")),
    "poetry.lock": '[[package]]\nname = "liger-kernel"\nversion = "0.8.0"\n\n[package.source]\ntype = "legacy"\nurl = "x"\n',
    "pdm.lock": '[[package]]\nname = "liger_kernel"\nversion = "0.8.0"\ngroups = ["default"]\n',
    "pylock.gpu.toml": 'lock-version = "1.0"\n[[packages]]\nname = "liger-kernel"\nversion = "0.8.0"\n[packages.sdist]\nname = "x"\n',
    "Pipfile.lock": '{"_meta": {}, "default": {}, "gpu": {"liger-kernel": {"version": "==0.8.0"}}}',
    "syft.json": json.dumps(SYFT),
    "cdxgen.json": json.dumps(CDXGEN),
    "spdx.json": json.dumps(SPDX),
    "spdx3.json": json.dumps(SPDX3),
    "freeze.txt": "\ufeffliger-kernel==0.8.0\r\ntorch==2.11.0\r\n",
}


@pytest.mark.parametrize("name", INPUTS)
def test_every_kind_of_file_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(INPUTS[name])
    assert states(tmp_path / name) == (1, {(LIGER, "liger-kernel", "0.8.0", "hit")})


def test_a_lock_with_forks_has_an_answer_for_each(tmp_path: Path) -> None:
    packages = [(f"package-{i}", "1.0") for i in range(500)]
    forks = "".join(
        f'\n[[package]]\nname = "liger-kernel"\nversion = "{version}"\nresolution-markers = [ "{marker}" ]\n'
        for version, marker in (("0.8.0", "python_full_version < '3.11'"), ("0.8.5", "python_full_version >= '3.11'"))
    )
    (tmp_path / "uv.lock").write_text(uv_lock(*packages) + forks)
    status, found = document(tmp_path / "uv.lock")
    rows = {(one["version"], one["state"], one["line"]) for one in found["answers"] if one["slug"] == LIGER}
    lines = (tmp_path / "uv.lock").read_text().splitlines()
    assert status == 1 and {row[:2] for row in rows} == {("0.8.0", "hit"), ("0.8.5", "not_hit")}
    assert all(lines[line - 1] == f'version = "{version}"' for version, _, line in rows)


CHANGED: dict[str, Any] = {
    "vcs": {"purl": f"{PURL[:-1]}5?vcs_url=git%2Bhttps://example.org/x%40main"},
    "url": {"purl": f"{PURL[:-1]}5?download_url=https://example.org/x.whl"},
    "conda": {"purl": "pkg:conda/liger-kernel@0.8.5?build=py311_0"},
    "modified": {"purl": f"{PURL[:-1]}5", "modified": True},
    "pedigree": {"purl": f"{PURL[:-1]}5", "pedigree": {"patches": [{"type": "unofficial"}]}},
    "nameless": {},
}


@pytest.mark.parametrize("kind", CHANGED)
def test_a_component_that_is_no_release_is_unknown(tmp_path: Path, kind: str) -> None:
    component = {"type": "library", "name": "liger-kernel", "version": "0.8.5"} | CHANGED[kind]
    (tmp_path / "bom.json").write_text(json.dumps({"bomFormat": "CycloneDX", "components": [component]}))
    status, rows = states(tmp_path / "bom.json")
    assert status == 3 and {row[3] for row in rows} == {"unknown"}, rows


def test_what_is_not_pinned_may_bring_in_anything(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("numpy>=1.20\nliger-kernel==0.8.5\n")
    words = (tmp_path / "r.txt", "--pack", LIGER)
    status, found = document(*words)
    assert status == 3 and len(found["unread"]) == 1 and "not pinned (1)" in found["unread"][0]
    (tmp_path / "r.txt").write_text("numpy==1.20\nliger-kernel==0.8.5\n")
    assert scan(*words).returncode == 0


REFUSED = {
    "empty": (b"", "names no package"),
    "blank": (b"\n\n# nothing\n", "names no package"),
    "zeros": (b"\0" * 4096, "holds zero bytes"),
    "truncated.lock": (uv_lock(("a", "1")).encode()[:-9], ": is not TOML"),
    "nameless.lock": (b'[[package]]\nversion = "1"\n', ":1: a package has no name"),
    "typed.lock": (b"[[package]]\nname = 3\n", ":1: name must be a text"),
    "scalar.lock": (b'x = """\n[[package]]\n"""\npackage = 3\n', "package must be an array"),
    "nested.lock": (b"[[package]]\nname = " + b"[" * 5000, ": is not TOML"),
    "truncated.json": (json.dumps(SYFT).encode()[:-5], "truncated.json:1: "),
    "deep.json": (b'{"bomFormat": ' + b"[" * 100000, "deep.json:1: "),
    "other.json": (b'{"a": 1}', "is JSON of another kind"),
    "debs.json": (json.dumps({"bomFormat": "CycloneDX", "components": SYFT["components"][:2]}).encode(), "none is a Python package"),
    "list.json": (b'{"bomFormat": "CycloneDX", "components": {}}', "must be an array"),
    "bom.xml": (b'<?xml version="1.0"?><bom/>', "is XML"),
    "bom.spdx": (b"SPDXVersion: SPDX-2.3\n", "is XML or tag-value"),
    "prose.txt": (b"This is a letter.\nIt names nothing.\n", "prose.txt:1: is no requirement"),
    "loop.txt": (b"-r missing.txt\n", "missing.txt: cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_line(tmp_path: Path, name: str) -> None:
    content, said = REFUSED[name]
    (tmp_path / name).write_bytes(content)
    found = scan(tmp_path / name)
    assert found.returncode == 2 and not found.stdout
    assert found.stderr.count("\n") == 1 and said in found.stderr, found.stderr


def test_folders_that_are_none_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    for words in ([tmp_path / "nothing"], ["--root", tmp_path / "nothing"], [tmp_path / "gone"], ["--root", "gone"], ["/dev/zero"],
                  [tmp_path / "nothing/bin/python3"]):  # fmt: skip
        found = scan(*words)
        wanted = 3 if words == [tmp_path / "nothing"] else 2  # a folder in which nothing is to be read
        assert found.returncode == wanted and found.stderr.count("\n") == 1, (words, found)
    found = scan(PATH="/nowhere")
    assert found.returncode == 2 and "no python3 is on PATH" in found.stderr
    with (tmp_path / "huge.lock").open("wb") as huge:
        huge.truncate(65 << 20)
    assert "more than 64 MiB" in scan(tmp_path / "huge.lock").stderr
    (tmp_path / "a.txt").write_text("-r b.txt\nliger-kernel==0.8.5\n")
    (tmp_path / "b.txt").write_text("-r a.txt\n")
    assert scan(tmp_path / "a.txt", "--pack", LIGER).returncode == 0


def test_hostile_environments_are_read_without_harm(tmp_path: Path) -> None:
    venv = install(tmp_path, "liger-kernel", "0.8.0")
    broken = site(venv) / "megatron_core-0.19.2.dist-info"
    broken.mkdir()
    os.mkfifo(broken / "METADATA")
    (site(venv) / "mamba_ssm-2.3.2.post1.dist-info").mkdir()
    (site(venv) / "tilelang-0.1.9.dist-info").mkdir()
    (site(venv) / "tilelang-0.1.9.dist-info/METADATA").write_bytes(b"\xff\xfe\0Name: \0\n" * 100)
    (site(venv) / "loop").symlink_to(".")
    (site(venv) / "evil.pth").write_bytes(b"import os; os.mkdir('/tmp/never')\n/nowhere\n\xff\xff\n..\n")
    (site(venv) / "liger_kernel-0.8.0.dist-info/direct_url.json").write_text("[" * 1000)
    status, rows = states(venv, pack=f"{LIGER},mamba3_mimo_gqa_bwd,dsa_graph_capture")
    assert status == 1 and ("mamba3_mimo_gqa_bwd", "mamba-ssm", "2.3.2.post1", "hit") in rows
    assert (LIGER, "liger-kernel", "0.8.0", "unknown") in rows, "a damaged direct_url.json says that it is no plain release"
    assert ("dsa_graph_capture", "megatron-core", "0.19.2", "hit") in rows
    assert not Path("/tmp/never").exists()


def test_a_zipped_package_is_unknown(tmp_path: Path) -> None:
    venv = install(tmp_path, "numpy", "1.0")
    (site(venv) / "liger_kernel-0.8.0-py3.12.egg").write_bytes(b"PK")
    (tmp_path / "other.zip").write_bytes(b"PK")
    (site(venv) / "easy-install.pth").write_text(f"{tmp_path}/other.zip\n")
    status, found = document(venv)
    assert status == 3 and len(found["unread"]) == 2


def test_headers_have_no_case_and_each_counts(tmp_path: Path) -> None:
    info = site(install(tmp_path, "numpy", "1.0")) / "x-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("NAME: Liger.Kernel\nversion: 0.8.0\nVersion: 0.8.5\n")
    assert states(tmp_path) == (1, {(LIGER, "liger-kernel", "0.8.0", "hit"), (LIGER, "liger-kernel", "0.8.5", "not_hit"),
                                    (LIGER, "liger-kernel", "1", "unknown")})  # fmt: skip


def test_a_link_out_of_an_image_is_not_followed(tmp_path: Path) -> None:
    outside = install(tmp_path / "outside", "liger-kernel", "0.8.0")
    image = install(tmp_path / "image/opt/venv", "numpy", "1.0").parents[1]
    (site(image / "opt/venv") / "out.pth").write_text(f"{site(outside)}\n../../../../../../outside/lib/python3.12/site-packages\n")
    (image / "opt/link").symlink_to(outside)
    assert states("--root", image) == (3, set()), "nothing that the pack asks about"


def test_failures_of_ours_are_5(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.0")))
    found = scan(tmp_path / "uv.lock", "--db", tmp_path / "uv.lock")
    assert found.returncode == 2 and "uv.lock" in found.stderr and found.stderr.count("\n") == 1
    root = tmp_path / "root"
    (root / "packs").mkdir(parents=True)
    found = scan(tmp_path / "uv.lock", PATCHBENCH_ROOT=str(root))
    assert found.returncode == 4 and "neither reports/evidence nor verdicts.json" in found.stderr
    (root / "verdicts.json").write_text("{")
    assert scan(tmp_path / "uv.lock", PATCHBENCH_ROOT=str(root)).returncode == 5
    (root / "verdicts.json").write_text('{"patchbench_verdicts": 1, "date": "2026-01-31", "packs": {}}')
    (root / "runner/python").mkdir(parents=True)
    for printed in ("", "print('x')", "print('[]')", 'print(\'{"done": 1, "slug": 2}\')\nraise SystemExit(1)'):
        (root / "runner/python/code_rules.py").write_text(printed)
        found = scan("--code", tmp_path, PATCHBENCH_ROOT=str(root))
        assert found.returncode == 5 and found.stderr.count("\n") == 1, (printed, found)

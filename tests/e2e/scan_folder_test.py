"""`patchbench scan DIR`: every list below a folder is read, and one answer is given for the project."""

from __future__ import annotations

from pathlib import Path

import pytest
from scan_lists_test import DOCKERFILE, PROJECT
from scan_test import LIGER, document, scan, uv_lock

LISTS = {
    "pyproject.toml": PROJECT,
    "uv.lock": uv_lock(("liger-kernel", "0.8.5"), ("deepspeed", "0.18.2")),
    "docker/Dockerfile.gpu": DOCKERFILE + "RUN pip install -r requirements/extra.txt\n",
    "requirements/extra.txt": "liger-kernel==0.7.0\n",
    "scripts/setup.sh": "#!/bin/sh\npip install liger-kernel==0.6.4\n",
    "scripts/train.sh": "#!/bin/sh\ntorchrun train.py\n",
    "bom.cdx.json": '{"bomFormat": "CycloneDX", "components": [{"name": "liger-kernel", "purl": "pkg:pypi/liger-kernel@0.8.1"}]}',
    "node_modules/x/requirements.txt": "liger-kernel==0.5.0\n",
    ".cache/requirements.txt": "liger-kernel==0.5.1\n",
    "notes.txt": "liger-kernel==0.5.2\n",
}


def project(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_every_list_of_a_project_is_read(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", LISTS)
    (tmp_path / "elsewhere.txt").write_text("liger-kernel==0.3.0\n")
    (folder / "requirements-linked.txt").symlink_to(tmp_path / "elsewhere.txt")
    status, found = document(folder, "--pack", LIGER)
    rows = {(Path(one["file"]).name, one["version"], one["state"]) for one in found["answers"] if one["state"] != "not_installed"}
    expected = {("pyproject.toml", "0.8.0", "hit"), ("uv.lock", "0.8.5", "not_hit"), ("Dockerfile.gpu", "0.8.0", "hit"),
                ("extra.txt", "0.7.0", "hit"), ("setup.sh", "0.6.4", "hit"), ("bom.cdx.json", "0.8.1", "hit")}  # fmt: skip
    assert (status, rows) == (1, expected)
    text = scan(folder, "--pack", LIGER).stdout
    # The Dockerfile takes a list of the project, which is one of its own, too: one row.
    assert text.count("liger-kernel 0.7.0  hit") == 1 and "extra.txt" in text and "not_installed" not in text


def test_what_a_project_does_not_tell_is_unknown(tmp_path: Path) -> None:
    right = {"uv.lock": uv_lock(("liger-kernel", "0.8.5")), "scripts/train.sh": "torchrun train.py\n"}
    words = ("--pack", LIGER)
    assert document(project(tmp_path / "right", right), *words)[0] == 0
    broken = project(tmp_path / "broken", right | {"old/poetry.lock": "[[package]]\nname = 3\n"})
    status, found = document(broken, *words)
    assert status == 3 and len(found["unread"]) == 1 and "poetry.lock:1: name must be a text" in found["unread"][0]
    base = project(tmp_path / "base", right | {"Dockerfile": "FROM nvcr.io/nvidia/pytorch:25.06-py3\n"})
    status, found = document(base, *words)
    assert status == 3 and "the base image nvcr.io/nvidia/pytorch:25.06-py3" in found["unread"][0]


def test_a_spent_budget_is_no_all_clear(tmp_path: Path) -> None:
    lists = {f"{i}/requirements.txt": "liger-kernel==0.8.5\n" for i in range(501)}
    status, found = document(project(tmp_path, lists), "--pack", LIGER)
    assert status == 3 and any("more than 500 lists" in line for line in found["unread"])


@pytest.mark.parametrize("files", [{"a.md": "x"}, {"requirements.txt": "\n# nothing\n"}])
def test_a_folder_without_a_list_answers_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    done = scan(project(tmp_path / "p", files))
    assert (done.returncode, done.stdout) == (3, "") and "no package was read" in done.stderr

"""`patchbench scan DIR`: every list below a folder is read, and one answer is given for the project."""

from __future__ import annotations

import subprocess
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


RIGHT = {"uv.lock": uv_lock(("liger-kernel", "0.8.5"))}
IGNORED = {
    ".gitignore": "/build/\n*.in\n!requirements-kept.in\n**/out/\n",
    "build/requirements.txt": "liger-kernel==0.5.0\n",
    "a/requirements.in": "liger-kernel==0.5.1\n",
    "a/b/out/requirements.txt": "liger-kernel==0.5.2\n",
    "a/.gitignore": "constraints.txt\n",
    "a/b/constraints.txt": "liger-kernel==0.5.3\n",
    "requirements-kept.in": "liger-kernel==0.6.0\n",
    "constraints.txt": "liger-kernel==0.6.1\n",
    "out.txt": "",
}


def versions(folder: Path, *words: str) -> tuple[int, set[str], list[str]]:
    """Exit status, the releases that are answered and the notes."""
    status, found = document(folder, "--pack", LIGER, *words)
    return status, {one["version"] for one in found["answers"] if one["state"] != "not_installed"}, found["notes"]


@pytest.mark.parametrize("is_repository", [False, True])
def test_what_gitignore_names_is_left_out(tmp_path: Path, is_repository: bool) -> None:
    folder = project(tmp_path / "p", RIGHT | IGNORED)
    if is_repository:
        subprocess.run(["git", "init", "-q", folder], check=True)
    status, found, notes = versions(folder)
    assert (status, found) == (1, {"0.8.5", "0.6.0", "0.6.1"})
    assert notes == [f"{folder}: 4 files and folders that .gitignore names are not read; --all reads them"]
    assert versions(folder, "--all") == (1, {"0.8.5", "0.6.0", "0.6.1", "0.5.0", "0.5.1", "0.5.2", "0.5.3"}, [])
    # A folder below has the rules of the repository above it, and of no folder above it elsewhere.
    below = scan(folder / "a", "--pack", LIGER)
    assert "3 files and folders" in below.stderr + below.stdout if is_repository else "liger-kernel 0.5.1" in below.stdout
    # What is named is read.
    assert versions(folder / "build")[:2] == (1, {"0.5.0"})


def test_what_a_repository_tracks_is_read_though_it_is_ignored(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", RIGHT | {".gitignore": "lib/\n", "lib/requirements.txt": "liger-kernel==0.5.0\n", "lib/x.in": ""})
    for words in (["init", "-q"], ["add", "-f", "lib/requirements.txt"]):
        subprocess.run(["git", "-C", folder, *words], check=True)
    assert versions(folder)[:2] == (1, {"0.8.5", "0.5.0"})
    (folder / ".git/index").write_bytes(b"damaged")
    assert versions(folder)[:2] == (1, {"0.8.5", "0.5.0"})


@pytest.mark.parametrize("place", ["env311", "sub/.venv", ".tox/py311", ".pixi/envs/default"])
def test_an_environment_of_a_project_is_named(tmp_path: Path, place: str) -> None:
    marker = "conda-meta/history" if "pixi" in place else "pyvenv.cfg"
    folder = project(tmp_path / "p", RIGHT | {f"{place}/{marker}": "", ".gitignore": "env*\n.venv\n"})
    status, found = document(folder, "--pack", LIGER)
    assert (status, found["unread"]) == (3, [f"{folder / place}: an environment; scan it by its name"])


TRAINS = "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss as Loss\n\nloss = Loss(reduction=%s)\n"


@pytest.mark.parametrize(
    ("code", "condition"),
    [('"none"', "met: {}/src/train.py:3"), ("mode", "open: {}/src/train.py:3"), ('"mean"', "open")],
)
def test_the_table_says_whether_the_condition_is_met(tmp_path: Path, code: str, condition: str) -> None:
    folder = project(tmp_path / "p", {"requirements.txt": "liger-kernel==0.8.0\n", "src/train.py": TRAINS % code})
    lines = scan(folder, "--pack", LIGER).stdout.splitlines()
    assert lines[0].split()[-1] == "condition" and lines[1].endswith("  " + condition.format(folder))


def test_code_of_a_project_decides_nothing_that_its_lists_answer(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", RIGHT | {"train.py": TRAINS % '"none"'})
    status, found = document(folder, "--pack", LIGER)
    assert (status, found["code"]) == (0, [])
    # Where no list names the package it is open whether it is there.
    (folder / "uv.lock").write_text(uv_lock(("numpy", "2.0")))
    status, found = document(folder, "--pack", LIGER)
    assert (status, [(Path(one["file"]).name, one["line"], one["state"]) for one in found["code"]]) == (3, [("train.py", 3, "meets")])
    assert "train.py:3: LigerFusedLinearCrossEntropyLoss(reduction=…) meets" in scan(folder, "--pack", LIGER).stdout
    (folder / ".gitignore").write_text("train.py\n")
    assert document(folder, "--pack", LIGER)[1]["code"] == []


def test_many_places_are_one_line_of_a_project(tmp_path: Path) -> None:
    files = {f"configs/{i:02}.yaml": "gradient_accumulation_steps: 8\n" for i in range(40)}
    folder = project(tmp_path / "p", files | {"requirements.txt": "transformers==5.16.0\n"})
    text = scan(folder, "--pack", "trainer_grad_accumulation").stdout
    assert text.count("configs/") == 4 and "configs/00.yaml:1: gradient_accumulation_steps is set to 8 (and in 39 more places)" in text
    assert len(document(folder, "--pack", "trainer_grad_accumulation")[1]["code"]) == 40


def test_code_that_a_budget_leaves_out_is_unknown(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", {"requirements.txt": "numpy==2.0\n"})
    for i in range(3):
        (folder / f"{i}.py").write_text(TRAINS % '"mean"' + "x = 1\n" * 600_000)
    status, found = document(folder, "--pack", LIGER)
    assert (status, len(found["unread_code"])) == (3, 1) and "2 Python files behind the first 6 MiB" in found["unread_code"][0]
    assert "unknown: whether a condition is met by what is not read: " in scan(folder, "--pack", LIGER).stdout


def test_a_project_without_python_at_hand_is_unknown(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", {"requirements.txt": "liger-kernel==0.8.0\n", "train.py": TRAINS % '"none"'})
    done = scan(folder, "--pack", LIGER, PATH=str(tmp_path))
    assert done.returncode == 1 and "its code needs python3 on PATH" in done.stdout


HUB = "use_kernels takes kernels of the Hub, which are not read; one may be Liger's"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.py", "model = AutoModel.from_pretrained(name, use_kernels=True)\n", 1),
        ("a.py", "\nmodel = AutoModel.from_pretrained(name, use_kernels=args.use_kernels)\n", 2),
        ("a.yaml", "model:\n  use_kernels: true\n", 2),
        ("a.sh", "#!/bin/sh\npython train.py \\\n  --use_kernels\n", 3),
        ("a.sh", "#!/bin/sh\npython train.py --use-kernels $KERNELS\n", 2),
        ("a.py", "model = AutoModel.from_pretrained(name, use_kernels=False)\n", 0),
        ("a.py", 'parser.add_argument("--use_kernels")\nclass A:\n    use_kernels: bool = Field(None)\n', 0),
        ("a.yaml", "use_kernels: false\n# use_kernels: true\n", 0),
    ],
)
def test_kernels_of_the_hub_are_not_read(tmp_path: Path, name: str, text: str, line: int) -> None:
    folder = project(tmp_path / "p", RIGHT | {name: text})
    status, found = document(folder, "--pack", LIGER)
    assert (status, found["unread_code"]) == ((3, [f"{folder / name}:{line}: {HUB}"]) if line else (0, []))


def test_what_locks_kernels_of_the_hub_is_named(tmp_path: Path) -> None:
    folder = project(
        tmp_path / "p",
        RIGHT | {"kernels.lock": '[\n{"repo_id": "kernels-community/liger_kernels", "sha": "1"}]', "pixi.lock": "version: 6\n"},
    )
    (folder / "pyproject.toml").write_text('[tool.kernels.dependencies]\n"kernels-community/liger_kernels" = ">=0.0.1"\n')
    status, found = document(folder, "--pack", LIGER)
    assert scan(folder / "kernels.lock").returncode == 3
    assert "kernels.lock:2: kernels-community/liger_kernels, a kernel of the Hub, which is not read" in "".join(found["unread"])
    assert status == 3 and sorted(Path(line.split(":")[0]).name for line in found["unread"]) == [
        "kernels.lock",
        "pixi.lock",
        "pyproject.toml",
    ]


PIXI = """[workspace]
channels = ["conda-forge"]
platforms = ["linux-64"]

[dependencies]
python = "3.11.*"
mamba-ssm = "2.3.1"
deepspeed = { version = "*", channel = "conda-forge" }

[pypi-dependencies]
liger-kernel = { version = "==0.8.0", extras = ["x"] }
transformers = "*"

[feature.gpu.target.linux-64.pypi-dependencies]
liger-kernel = { git = "https://example.org/liger" }
"""
HATCH = """[project]
name = "x"
[tool.hatch.envs.default]
dependencies = ["liger-kernel==0.8.0"]
[tool.hatch.envs."train.gpu"]
extra-dependencies = [
  "deepspeed==0.18.2",
]
"""


def rows_of(file: Path) -> set[tuple[str, str, str, int]]:
    """(package, version, source, line); a deep table has the line of its header."""
    return {(one["package"], one["version"] or one["range"], one["source"], one["line"])
            for one in document(file)[1]["answers"] if one["state"] != "not_installed"}  # fmt: skip


def test_tables_of_pixi_and_hatch_are_read(tmp_path: Path) -> None:
    pixi = {("mamba-ssm", "2.3.1", "conda", 7), ("deepspeed", "", "conda", 8), ("liger-kernel", "0.8.0", "", 11),
            ("transformers", "5.24.0", "", 12), ("liger-kernel", "", "git", 14)}  # fmt: skip
    folder = project(tmp_path / "p", {"pixi.toml": PIXI, "sub/pyproject.toml": HATCH})
    assert rows_of(folder / "pixi.toml") == pixi
    assert rows_of(folder / "sub/pyproject.toml") == {("liger-kernel", "0.8.0", "", 3), ("deepspeed", "0.18.2", "", 5)}
    assert rows_of(folder) == pixi | rows_of(folder / "sub/pyproject.toml")
    inside = PIXI.replace("[", "[tool.pixi.").replace('[tool.pixi."', '["')
    (folder / "pyproject.toml").write_text(inside)
    assert rows_of(folder / "pyproject.toml") == pixi

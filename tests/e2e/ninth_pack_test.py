"""A ninth pack edits no file: README's words for `patchbench new` in a copy of the repository, a toy bug in its cells, every verdict.

Once on an upstream that is locked, in README's own words, and once on a new one, which is one more entry of env/pins.json. The copy
builds the two reproducers and nothing else; the program is the one that is built here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from answers import BIN, ROOT
from readme_test import OF_PROGRAM, arguments

if not (ROOT / ".git").exists() or not any(BIN.glob("repro_*")):
    pytest.skip("needs a git checkout and a build with reproducers", allow_module_level=True)
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "patchbench"
CLANG_FORMAT = Path(pytest.__file__).parents[1] / "clang_format/data/bin/clang-format"
PINS = "env/pins.json"
FIXTURE = ROOT / "tests/fixtures/toy_bug"
(README_WORDS,) = [arguments(words) for _, words in OF_PROGRAM if arguments(words)[0] == "new"]
RIGHT = "def twice(x):\n    return x * 2\n"
FIRST_ROW_LEFT = "def twice(x):\n    y = x * 2\n    y[0] = x[0]\n    return y\n"
CASES = (("rows_3", "trigger", 3, "uniform"), ("rows_31", "trigger", 31, "uniform"), ("zero", "control", 8, "zero"))
QUICK_TESTS = ("function_length", "pages", "releases", "tracked_files")
Done = subprocess.CompletedProcess[str]


@dataclasses.dataclass(frozen=True)
class NewPack:
    """A pack to be made: the words of `patchbench new`, and what they say."""

    words: tuple[str, ...]
    slug: str
    upstream: str
    version: str
    file: str

    def owns(self, path: Path) -> bool:
        """Whether a repository path lies in one of the pack's cells."""
        return self.slug in path.parts or path.name == f"{self.slug}_test.cpp"


def pack_of(words: list[str]) -> NewPack:
    name, _, file = words[2].partition("=")
    upstream, _, version = name.partition("@")
    return NewPack(tuple(words), words[1], upstream, version, file)


LOCKED = pack_of(README_WORDS)
OTHER_VALUES = {"my_bug": "toy_bug", "90": "91", f"{LOCKED.upstream}@{LOCKED.version}={LOCKED.file}": "toy@1.0=toy/twice.py"}
NEW = pack_of([OTHER_VALUES.get(word, word) for word in README_WORDS])


class Desk:
    """A copy of the repository, with a cache and a ledger of its own."""

    def __init__(self, folder: Path):
        self.root, self.cache = folder / "copy", folder / "cache/patchbench"
        self.env = os.environ | {
            "PATCHBENCH_ROOT": str(self.root),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PATCHBENCH_LEDGER": str(folder / "ledger.db"),
        }
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-zco", "--exclude-standard"], capture_output=True, text=True, check=True)
        for name in filter(None, listed.stdout.split("\0")):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).exists():
                shutil.copy2(ROOT / name, self.root / name)
        for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=Toy", "-c", "user.email=toy@toy.invalid", "commit", "-qm", "copy"]):
            self.git(*words)
        self.bin = self.root / "build/cpu/bin"
        self.bin.mkdir(parents=True)
        for name in ("patchbench", "patchbench-sandbox"):
            shutil.copy(BIN / name, self.bin)
        (self.cache / "files").mkdir(parents=True)
        for name in ("env", "images", "probe"):
            if (CACHE / name).exists():
                (self.cache / name).symlink_to(CACHE / name)

    def git(self, *words: str) -> str:
        return subprocess.run(["git", "-C", self.root, *words], capture_output=True, text=True, check=True).stdout

    def run(self, *words: str | Path) -> Done:
        return subprocess.run([self.bin / "patchbench", *words], env=self.env, capture_output=True, text=True, timeout=300)

    def must(self, *words: str | Path) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def build(self, *packs: NewPack) -> None:
        words = [self.root / "env/build.sh", "cpu", *(f"repro_{pack.slug}" for pack in packs)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def broken_layout(self) -> str:
        """What tests/layout_test says of the copy; "" where every rule is kept."""
        words = [BIN / "layout_test", "--gtest_filter=Repository.KeepsItsLayout"]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True)
        return done.stdout if done.returncode else ""

    def broken_form(self) -> str:
        """What the formatters say of the new files, and of the copy the tests that read every pack; "" where they are content."""
        new = self.git("ls-files", "--others", "--exclude-standard").split()
        scripts, sources = ([path for path in new if path.endswith(end)] for end in (".py", ".cpp"))
        python = [sys.executable, "-m"]
        said = ""
        for words in (
            [CLANG_FORMAT, "--dry-run", "-Werror", *sources],
            [*python, "ruff", "check", *scripts],
            [*python, "ruff", "format", "--check", *scripts],
            [*python, "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/python/{name}_test.py" for name in QUICK_TESTS)],
        ):
            done = subprocess.run(words, cwd=self.root, env=self.env, capture_output=True, text=True)
            said += done.stdout + done.stderr if done.returncode else ""
        return said

    def edited(self, packs: tuple[NewPack, ...]) -> list[str]:
        """What git sees of the copy besides new files in the cells of these packs."""
        lines = self.git("status", "--porcelain", "--untracked-files=all").splitlines()
        own = {line[3:] for line in lines if line[:2] == "??" and any(pack.owns(Path(line[3:])) for pack in packs)}
        return sorted(line[3:] for line in lines if line[3:] not in own)

    @contextlib.contextmanager
    def manifest(self, pack: NewPack) -> Iterator[dict]:
        """The pack's manifest, written back when the block ends."""
        path = self.root / "packs" / pack.slug / "manifest.json"
        manifest = json.loads(path.read_text())
        yield manifest
        path.write_text(json.dumps(manifest, indent=2) + "\n")


def lock_toy(desk: Desk) -> None:
    """One entry of env/pins.json, before all others, and its wheel in the cache."""
    wheel = desk.cache / "toy.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/__init__.py", "")
        archive.writestr("toy/twice.py", FIRST_ROW_LEFT)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (desk.cache / "files" / sha256).mkdir()
    name = "toy-1.0-py3-none-any.whl"
    wheel.rename(desk.cache / "files" / sha256 / name)
    entry = {
        "project": "toy",
        "package": "toy",
        "license": "MIT",
        "url": "https://toy.invalid/toy",
        "git_prefix": "",
        "environment": "torch-2.11",
        "releases": [{"version": "1.0", "date": "2026-01-01", "file": name, "sha256": sha256}],
        "commits": [],
    }
    pins = desk.root / PINS
    first = '{\n  "upstreams": {\n'
    text = pins.read_text()
    assert text.startswith(first)
    pins.write_text(f'{first}    "toy": {json.dumps(entry)},\n{text[len(first) :]}')


def share_release(desk: Desk, pack: NewPack) -> None:
    """The release comes from the cache of this machine."""
    releases = json.loads((ROOT / PINS).read_text())["upstreams"][pack.upstream]["releases"]
    (sha256,) = [release["sha256"] for release in releases if release["version"] == pack.version]
    (desk.cache / "files" / sha256).symlink_to(CACHE / "files" / sha256)


def fill(desk: Desk, pack: NewPack) -> None:
    """The toy bug: what the release has for `twice` leaves row 0 as it is, or all of it where it has nothing of that name."""
    repro, module = desk.root / "repro" / pack.slug, pack.file.removesuffix(".py").replace("/", ".")
    (repro / "repro.cpp").write_text((FIXTURE / "repro.cpp").read_text().replace("toy_bug", pack.slug))
    written, found, _ = (repro / "subject.py").read_text().partition("    raise NotImplementedError")
    assert found
    calls = f'    twice = getattr(importlib.import_module("{module}"), "twice", torch.clone)\n'
    body = calls + '    return {"twice": twice(case.tensors["x"])}\n'
    (repro / "subject.py").write_text(written.replace("import torch\n", "import importlib\n\nimport torch\n", 1) + body)
    with desk.manifest(pack) as manifest:
        manifest["subjects"] = ["upstream", "patched"]
        manifest["cases"] = [
            {"name": name, "role": role, "axes": {"rows": rows, "values": values}, "judged_on": ["cpu", "cuda"]}
            for name, role, rows, values in CASES
        ]
        manifest["scope"][0]["cases"] = [CASES[0][0]]


def save_edits(desk: Desk, pack: NewPack, folder: Path) -> Path:
    """The pack's edit and one mutant, as `patch save` writes them; returns a candidate that is wrong in every row."""
    for name, lines, words in (
        ("wrong", RIGHT.replace("2", "3"), ["--out", folder / "candidate"]),
        ("right", RIGHT, ["--name", "0001-double-every-row"]),
        ("mutant", FIRST_ROW_LEFT, ["--name", "mutant-first-row-left"]),
    ):
        tree = folder / name
        desk.must("patch", "new", pack.slug, tree)
        file = tree / pack.file
        file.write_text(f"{file.read_text()}\n\n{lines}")
        desk.must("patch", "save", tree, "--subject", f"doubles, {name}", *words)
    (wrong,) = (folder / "candidate").glob("*.edit")
    return wrong


def sentinel(done: Done) -> tuple[int, str]:
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["sentinel"]


def write_first_files(desk: Desk, packs: tuple[NewPack, ...]) -> None:
    """`patchbench new`: what it wrote is new, keeps the layout, and says by name what is still to be written."""
    for pack in packs:
        desk.must(*pack.words)
    assert desk.edited(packs) == [PINS] and desk.git("diff", "--numstat").split() == ["1", "0", PINS]
    assert desk.broken_layout() == "" and desk.broken_form() == ""
    assert desk.must("status", "--markdown") == (desk.root / "reports/STATUS.md").read_text()
    pages = [sys.executable, desk.root / "env/pack_figures.py", "--check"]
    assert subprocess.run(pages, env=desk.env | {"PATCHBENCH_BUILD": str(BIN.parent)}).returncode == 0
    desk.build(packs[0])
    unfilled = desk.run("reproduce", packs[0].slug)
    assert unfilled.returncode == 5 and f"repro/{packs[0].slug}/repro.cpp: write inputs()" in unfilled.stderr


def fill_cells(desk: Desk, pack: NewPack, folder: Path) -> Path:
    """The pack with its edit and mutant, the layout kept; returns the wrong candidate."""
    fill(desk, pack)
    wrong = save_edits(desk, pack, folder)
    assert f"patches/{pack.slug}: filled and waived" in desk.broken_layout()
    with desk.manifest(pack) as manifest:
        manifest["waivers"] = [one for one in manifest["waivers"] if one["cell"] != "patches"]
    assert desk.broken_layout() == ""
    return wrong


def test_a_ninth_pack_edits_no_file(tmp_path: Path) -> None:
    desk, packs = Desk(tmp_path), (LOCKED, NEW)
    before = {row["slug"] for row in json.loads(desk.must("--json", "list"))}
    lock_toy(desk)
    share_release(desk, LOCKED)
    write_first_files(desk, packs)
    wrong = {pack.slug: fill_cells(desk, pack, tmp_path / pack.slug) for pack in packs}
    desk.build(*packs)
    assert {row["slug"] for row in json.loads(desk.must("--json", "list"))} - before == set(wrong)
    for pack in packs:
        assert sentinel(desk.run("--json", "reproduce", pack.slug)) == (0, "BUG_REPRODUCED(wrong_result)")
        assert sentinel(desk.run("--json", "validate", pack.slug)) == (0, "FIX_VALIDATED")
    rejected = desk.run("--json", "validate", NEW.slug, "--edit", wrong[NEW.slug])
    assert sentinel(rejected) == (1, "FIX_REJECTED")
    assert "altered" not in json.loads(rejected.stdout)["question"]  # small changes of a red fix say nothing
    assert desk.edited(packs) == [PINS]
    (desk.root / "README.md").write_text("an edit\n")
    assert desk.edited(packs) == ["README.md", PINS]

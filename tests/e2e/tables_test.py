"""Every verb that prints a table: one row a line into a pipe, tabs with --plain, whole slugs on a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import answers
import pytest
from answers import PROGRAM, ROOT
from goodput_test import report

LIGER = "liger_flce_none_bwd"
SLUGS = sorted(path.parent.name for path in ROOT.glob("packs/*/manifest.json"))
# The file of the runner that makes the table -> the words that print it.
VERBS = {
    "cli/list.cpp": (["list"], ["list", "--catalog"]),
    "cli/status.cpp": (["status", LIGER], ["status", "--since", "2026-01-01"]),
    "cli/lifecycle.cpp": (["status", "due"],),
    "cli/scan.cpp": (["scan", "requirements.txt"],),
    "cli/doctor.cpp": (["env", "doctor"],),
    "cli/env_policy.cpp": (["job", "env", "check"], ["job", "env", "explain", "allocator"]),
    "cli/cache.cpp": (["env", "cache", "list"],),
    "cli/ledger.cpp": (["ledger", "list"],),
    "cli/goodput.cpp": (["job", "goodput", "before.json", "after.json"],),
    "cli/triage.cpp": (["job", "triage", "log"],),
    "cli/sweep.cpp": (["sweep", "--plan", "--upstreams", "all"],),
    "run/window_run.cpp": (["status", "windows", LIGER],),
    "status/case_matrix.cpp": (["status", "cases", LIGER],),
}
# Tables of runs, of an index and of images, which take a network, a container engine or minutes.
OTHERS = {"cli/env.cpp", "cli/patch_rebase.cpp", "cli/pins.cpp", "cli/replay.cpp", "cli/run.cpp"}
WORDS = [words for all_words in VERBS.values() for words in all_words]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tables")
    (made / "requirements.txt").write_text("liger-kernel==0.8.0\ntransformer-engine==2.20.2\nmegatron-core==0.19.2\ntilelang==0.1.9\n")
    (made / "log").write_text("UserWarning: " + "a warning that no rule knows " * 8 + "\n")
    for name, seed in (("before", 1), ("after", 2)):
        (made / f"{name}.json").write_text(json.dumps(report(seed)))
    # Other tests write into the cache that all share.
    (made / "cache/patchbench/runs/one").mkdir(parents=True)
    done = subprocess.run([PROGRAM, "ledger", "import", ROOT / "reports/evidence/mamba3_mimo_smem_2d/cpu.jsonl"], env=environment(made))
    assert done.returncode == 0
    return made


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PATCHBENCH_ROOT": str(ROOT), "PATCHBENCH_LEDGER": str(folder / "ledger.db"), "NO_COLOR": "1", "COLUMNS": "80"}


def printed(folder: Path, *words: str) -> str:
    env = environment(folder) | ({"XDG_CACHE_HOME": str(folder / "cache")} if words[:2] == ("env", "cache") else {})
    return subprocess.run([PROGRAM, *words], cwd=folder, env=env, stdout=subprocess.PIPE, text=True).stdout


def on_a_terminal(folder: Path, *words: str) -> str:
    return answers.on_a_terminal(*words, env=environment(folder), folder=folder)


def rows_of(plain: str) -> list[list[str]]:
    return [line.split("\t") for line in plain.splitlines() if "\t" in line]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_row_is_one_line_and_its_cells_are_whole(folder: Path, words: list[str]) -> None:
    rows = rows_of(printed(folder, *words, "--plain"))
    assert rows and all(len(row) > 1 for row in rows)
    lines = printed(folder, *words).splitlines()
    for row in rows:
        cells = [re.escape(cell) for cell in row if cell]
        pattern = re.compile(r"\s*" + r"\s{2,}".join(cells) + r"\s*")
        assert any(pattern.fullmatch(line) for line in lines), row


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_a_terminal_shows_every_slug_whole(folder: Path, words: list[str]) -> None:
    cells = {cell for row in rows_of(printed(folder, *words, "--plain")) for cell in row}
    wanted = {slug for slug in SLUGS if any(slug in cell for cell in cells)}
    said = on_a_terminal(folder, *words)
    assert said and {slug for slug in wanted if slug not in said} == set()


def test_a_terminal_has_a_table_in_80_columns_where_its_slugs_leave_room(folder: Path) -> None:
    table = on_a_terminal(folder, "scan", "requirements.txt").split("\n\n")[0].splitlines()
    assert len(table) > len(rows_of(printed(folder, "scan", "requirements.txt", "--plain"))), "no cell was wrapped"
    assert max(map(len, table)) <= 80


@pytest.mark.parametrize(
    ("words", "red", "green"),
    [
        (["status"], "wrong_gradients", ""),
        (["status", LIGER], r"BUG_REPRODUCED\(", "BUG_ABSENT"),
        (["status", "--since", "2026-01-01"], r"BUG_REPRODUCED\(wrong_", "CLAIM_CONFIRMED"),
        (["status", "windows"], "wrong_gradients", ""),
        (["status", "windows", LIGER], "wrong_gradients", "absent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_verdict_has_a_colour_on_a_terminal_alone(folder: Path, words: list[str], red: str, green: str) -> None:
    coloured = {name: value for name, value in environment(folder).items() if name != "NO_COLOR"}
    said = answers.on_a_terminal(*words, env=coloured, folder=folder)
    assert re.search(rf"\x1b\[31m[^\x1b]*{red}", said)
    assert not green or re.search(rf"\x1b\[32m[^\x1b]*{green}", said)
    without = on_a_terminal(folder, *words)
    age = re.compile(r"\x1b\[\d*m|\d+ min$", re.M)  # of the newest record, which may be a minute older the second time
    assert "\x1b" not in without and age.sub("", said) == age.sub("", without)
    assert "\x1b" not in subprocess.run([PROGRAM, *words], cwd=folder, env=coloured, stdout=subprocess.PIPE, text=True).stdout


def test_the_words_of_a_verdict_table_have_one_legend(folder: Path) -> None:
    """On the page of all verdicts and under `status`; none on a pack's page, which has a link, and for programs, which take --plain."""
    page = printed(folder, "status", "--markdown")
    legend = next(line for line in page.splitlines() if line.startswith("Words: "))
    rows = [row.split(" | ") for row in page.partition("| version | question |")[2].splitlines() if row.startswith("| ")]
    asked = {row[1].split()[0].partition(":")[0] for row in rows}
    asked -= {"question"}
    assert {"reproduce", "model", "claim"} < asked and all(re.search(rf"\b{word}\b", legend) for word in asked), asked
    assert "| NONE |" in page and "NONE: " in legend
    words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", legend)
    for slug in ("mamba3_siso_bwd_cse", LIGER):
        own = (ROOT / f"packs/{slug}/README.md").read_text()
        table = own.partition("| tested release, device |")[2].partition("\n\n")[0]
        sentinels, said = set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", table)), printed(folder, "status", slug, "--summary")
        assert "Words: " not in own and sentinels and all(f"{sentinel}: " in said for sentinel in sentinels), slug
    for question in (["status"], ["status", LIGER], ["status", "--since", "2026-11-21"]):
        assert " ".join(printed(folder, *question).split()).endswith(words), question
        assert "Words: " not in printed(folder, *question, "--plain")


def test_no_table_has_a_style_of_its_own() -> None:
    makers = {}
    for path in [*ROOT.glob("runner/cli/*.cpp"), *ROOT.glob("runner/run/*.cpp"), *ROOT.glob("runner/status/*.cpp")]:
        text = path.read_text()
        name = path.relative_to(ROOT / "runner").as_posix()
        if "report::Table " in text:
            styles = re.findall(r"\.render\(((?:\w+\(\w+\)|[^()]*))\)", text)
            assert styles and set(styles) <= {"style", "table_style(context)"}, name
        if "table_style(context)" in text:
            makers[name] = text
    assert makers.keys() - OTHERS == VERBS.keys()

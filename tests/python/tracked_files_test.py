"""The tree must travel to a GPU machine together with wheels in 64 MiB, and its measurements must be readable in a diff."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "env"))
import json_rows  # noqa: E402
import records  # noqa: E402

MOST_MIB = {".": 20, "reports": 15}


def too_large(sizes: dict[str, int]) -> list[str]:
    """What holds more than it may, with its size; `sizes` is path -> bytes."""
    held = {folder: sum(n for path, n in sizes.items() if folder == "." or path.startswith(f"{folder}/")) for folder in MOST_MIB}
    return [f"{folder}: {held[folder] / 2**20:.1f} MiB, at most {most}" for folder, most in MOST_MIB.items() if held[folder] > most * 2**20]


def tracked() -> list[str]:
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout: what is tracked is not known")
    return [path for path in done.stdout.split("\0") if path and (ROOT / path).is_file()]


def test_tracked_files_are_small_enough_to_travel() -> None:
    assert too_large({path: os.path.getsize(ROOT / path) for path in tracked()}) == []


def test_a_tree_that_is_too_large_is_named() -> None:
    assert too_large({"reports/evidence/a.jsonl": 15 * 2**20, "runner/a.cpp": 2**20}) == []
    assert too_large({"reports/a": 15 * 2**20 + 1}) == ["reports: 15.0 MiB, at most 15"]
    assert too_large({"runner/a": 21 * 2**20}) == [".: 21.0 MiB, at most 20"]


def test_measurements_have_one_row_a_line() -> None:
    files = [str(ROOT / path) for path in tracked() if path.startswith("reports/") and path.endswith(".json")]
    assert files and json_rows.main(["--check", *files]) == 0


def cases_not_one_a_line(text: str) -> bool:
    """Whether a manifest has a case on several lines, or several on one."""
    document = json.loads(text)
    rows = text[text.index('"cases": [') :].splitlines()[1 : 1 + len(document["cases"])]
    try:
        return [json.loads(row.rstrip(",")) for row in rows] != document["cases"]
    except json.JSONDecodeError:
        return True


def test_manifests_have_one_case_a_line() -> None:
    manifests = sorted(ROOT.glob("packs/*/manifest.json"))
    assert manifests and [path.parent.name for path in manifests if cases_not_one_a_line(path.read_text())] == []
    assert cases_not_one_a_line('{"cases": [\n{"name":\n "a"}]}') and cases_not_one_a_line('{"cases": [\n{"a": 1}, {"b": 2}\n]}')


def test_rows_are_written_one_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {
        "device": "H200",
        "empty": [],
        "runs": [{"name": "a", "rows": [{"ms": [1, 2]}, {"ms": [3, 4]}]}],
        "points": [[1, 2.5], [2, 3]],
    }
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(document))
    assert json_rows.main(["--check", str(file)]) == 1 and str(file) in capsys.readouterr().out
    assert json_rows.main([str(file)]) == 0 and json_rows.main(["--check", str(file)]) == 0
    assert json.loads(file.read_text()) == document
    assert '    {"ms": [1, 2]},\n    {"ms": [3, 4]}\n' in file.read_text() and "\n  [1, 2.5],\n" in file.read_text()
    assert json_rows.main([]) == 2


HOW = "[N,…] is definition N with … in its holes []; [0,…] is an array; [-K] is the digest of the record K rows above"
HEAD = json.dumps({"patchbench_evidence": 3, "how": HOW}, ensure_ascii=False, separators=(",", ":")) + "\n"


def test_records_are_read_in_any_format() -> None:
    whole = ['{"a":[{"cpu":"x"},1.50e-7,null],"n":1}', '{"a":[{"cpu":"x"},1.50e-7,null],"n":"ü\\n"}']
    second = '{"patchbench_evidence":2}\n{"$":1,"value":"x"}\n{"$":2,"value":[{"cpu":{"$":1}},1.50e-7,null]}\n'
    third = HEAD + '{"$":1,"value":[0,{"cpu":"x"},[],null]}\n{"$":2,"value":{"a":[1,[]],"n":[]}}\n{"$":3,"value":[2,1.50e-7,[]]}\n'
    assert list(records.records_in("\n".join(whole) + "\n")) == whole
    assert list(records.records_in(second + '{"a":{"$":2},"n":1}\n{"a":{"$":2},"n":"ü\\n"}\n')) == whole
    assert list(records.records_in(third + '[3,1]\n[2,1.50e-7,"ü\\n"]')) == whole
    digest = hashlib.sha256(whole[0].encode()).hexdigest()
    assert list(records.records_in(third + '[3,1]\n{"of":[0,[-1]]}\n')) == [whole[0], f'{{"of":["{digest}"]}}']


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"patchbench_evidence":4}', ValueError),
        ("[3]", KeyError),
        ('{"a":[-1]}', IndexError),
        ('{"a":[]}', ValueError),
        ("[1]", ValueError),
        ("[1,2,3]", ValueError),
        ("[1,2", ValueError),
    ],
)
def test_a_damaged_line_is_refused(line: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        list(records.records_in(f'{HEAD}{{"$":1,"value":{{"a":[]}}}}\n{line}\n'))


def test_the_program_and_this_reader_name_the_same_first_line() -> None:
    assert f'R"({HEAD.strip()})"' in (ROOT / "runner/ledger/row_reader.h").read_text()

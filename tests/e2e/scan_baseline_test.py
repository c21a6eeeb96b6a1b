"""`patchbench scan --baseline`: what a former answer holds does not fail, what is new does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scan_formats_test import check_sarif
from scan_test import LIGER, document, scan, uv_lock

LOSS = "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss as Loss\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "uv.lock").write_text(uv_lock(("liger-kernel", "0.8.0"), ("megatron-core", "99.0")))
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text(LOSS + 'Loss(reduction="none")\n')
    return tmp_path


def written(folder: Path, *words: Any) -> Path:
    (folder / "baseline.json").write_text(scan(*words, "--format", "json", cwd=folder).stdout)
    return folder / "baseline.json"


def status(folder: Path, *words: Any) -> int:
    return scan(*words, "--baseline", "baseline.json", cwd=folder).returncode


def test_what_a_baseline_holds_does_not_fail_and_is_marked(project: Path) -> None:
    words = ("uv.lock", "--code", "code")
    written(project, *words)
    assert status(project, *words) == 0
    (project / "uv.lock").write_text("# one line more\n" + (project / "uv.lock").read_text())
    (project / "code/train.py").write_text("# one line more\n" + (project / "code/train.py").read_text())
    found = document(*words, "--baseline", "baseline.json", cwd=project)
    assert found[0] == 0
    open_ = [one for one in found[1]["answers"] if one["state"] in ("hit", "unknown")]
    assert len(open_) > 2 and all(one["in_baseline"] for one in (*open_, *found[1]["code"]))
    said = {name: scan(*words, "--baseline", "baseline.json", "--format", name, cwd=project).stdout
            for name in ("table", "sarif", "cyclonedx", "openvex", "markdown", "github")}  # fmt: skip
    assert "All that was found is ignored, in the baseline" in said["table"]
    assert "unknown, in the baseline" in said["table"] and "meets: wrong_gradients, in the baseline" in said["table"]
    assert "hit: wrong_gradients (silent_wrong), in the baseline" in said["markdown"].replace("\\", "")
    assert "::error" not in said["github"] and "::warning" not in said["github"] and "::notice" in said["github"]
    assert {one["baselineState"] for one in check_sarif(json.loads(said["sarif"]))} == {"unchanged"}
    assert "patchbench:in_baseline" in said["cyclonedx"] and "In the baseline." in said["openvex"]
    # An answer that was made with a baseline is one, too.
    (project / "baseline.json").write_text(json.dumps(found[1]))
    assert status(project, *words) == 0


def test_what_is_new_fails(project: Path) -> None:
    words = ("uv.lock", "--code", "code")
    before = (project / "uv.lock").read_text(), (project / "code/train.py").read_text()
    document_ = json.loads(written(project, *words).read_text())

    def now(lock: str, code: str) -> int:
        (project / "uv.lock").write_text(lock)
        (project / "code/train.py").write_text(code)
        return status(project, *words)

    assert now(*before) == 0
    assert now(before[0].replace("0.8.0", "0.8.1"), before[1]) == 1, "another release"
    assert now(before[0].replace("99.0", "99.1"), before[1]) == 3, "another unknown release"
    assert now(before[0].replace("0.8.0", "77.0"), before[1]) == 3, "a hit that is unknown now"
    assert now(before[0] + uv_lock(("tilelang", "77.0")).partition("\n")[2], before[1]) == 3, "one more unknown"
    assert now(before[0], before[1] + 'Loss(reduction="none")\n') == 1, "one more place, with the same text"
    assert now(before[0], before[1] + "Loss(reduction=x)\n") == 3, "a place that cannot be known"
    assert now(before[0], LOSS + "Loss(reduction=x)\n") == 3, "the same line, and it cannot be known"
    now(*before)
    for answer in document_["answers"]:
        answer["classes"] = [one for one in answer["classes"] if one["class"] != "wrong_gradients"]
    (project / "baseline.json").write_text(json.dumps(document_))
    assert status(project, *words) == 1, "another failure class of the same release"


def test_a_condition_that_is_met_now_is_new(project: Path) -> None:
    (project / "code/train.py").write_text("import torch\n")
    words = ("uv.lock", "--code", "code", "--pack", LIGER)
    written(project, *words)
    assert status(project, *words) == 0
    found = json.loads((project / "baseline.json").read_text())
    (project / "code/train.py").write_text(LOSS + 'Loss(reduction="none")\n')
    found["code"] = document(*words, cwd=project)[1]["code"]  # the place alone is known
    (project / "baseline.json").write_text(json.dumps(found))
    assert status(project, *words) == 1
    assert status(project, "uv.lock", "--pack", LIGER) == 0, "without code the condition is as open as it was"


def test_what_was_ignored_then_is_in_no_baseline(project: Path) -> None:
    (project / ".patchbench.toml").write_text(f'[[ignore]]\npack = "{LIGER}"\nreason = "a"\nuntil = 2999-01-01\n')
    words = ("uv.lock", "--pack", LIGER)
    written(project, *words)
    assert status(project, *words) == 0
    (project / ".patchbench.toml").unlink()
    assert status(project, *words) == 1, "the entry's day would not end"


def test_what_is_not_read_is_held_line_by_line(project: Path) -> None:
    (project / "r.txt").write_text("./wheels/some.whl\n")
    assert json.loads(written(project, "r.txt").read_text())["unread"]
    assert status(project, "r.txt") == 0
    (project / "r.txt").write_text("./wheels/some.whl\n./wheels/other.whl\n")
    assert status(project, "r.txt") == 3
    (project / "r.txt").write_text("numpy==1.0\n")
    assert status(project, "r.txt") == 3, "nothing that a pack asks about is no all-clear"


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", '"x"', "{", '{"answers": 1, "code": []}', '{"answers": [], "code": []}',
     '{"answers": [1], "code": [], "unread": []}',
     '{"answers": [{"slug": "a"}], "code": [], "unread": []}', '{"answers": [], "code": [{"slug": "a"}], "unread": []}',
     '{"answers": [], "code": [], "unread": [1]}', "\0\xff", "[" * 5000],
)  # fmt: skip
def test_a_baseline_that_is_none_is_refused_in_one_line(project: Path, text: str) -> None:
    (project / "baseline.json").write_text(text)
    found = scan("uv.lock", "--baseline", "baseline.json", cwd=project)
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and "baseline.json" in found.stderr, found.stderr
    assert scan("uv.lock", "--baseline", "nowhere.json", cwd=project).returncode == 2

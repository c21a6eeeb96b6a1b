"""What plot_peers.py draws of the bench's rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "reports" / "evidence" / "te_fused_ce"
sys.path[:0] = [str(ROOT / "repro" / "bench"), str(ROOT / "repro" / "te_fused_ce")]

import plot_peers  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def drawn(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert plot_peers.main([str(path)]) == 0
    return capsys.readouterr().out


def test_the_evidence_is_drawn_from_its_own_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert drawn(EVIDENCE / "bench-h100.json", capsys) == (EVIDENCE / "peers-h100.svg").read_text()


def test_a_vocabulary_with_four_numbers_of_tokens_is_a_panel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"reduction": "mean", "floor_ms": 0.5}
    names = ("patchbench_ops", "patchbench_ops, over the logits", "torch")
    rows = [
        row | {"shape": [tokens, 1000, dtype], "name": name, "ms": [ms, ms, ms]}
        for tokens, ms in ((1, 1.0), (2, 1.0), (4, 2.0), (8, 4.0))
        for name in names
        for dtype in ("bfloat16", "float32")
    ]
    rows.append({"shape": [16, 1000, "bfloat16"], "reduction": "mean", "not_run": {"torch": "refused"}})
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"rows": rows}))
    lines = list(ElementTree.fromstring(drawn(file, capsys)).iter(f"{SVG}polyline"))
    points = {line.find(f"{SVG}title").text: line.get("points").split() for line in lines}
    assert {name: len(of) for name, of in points.items()} == {"patchbench_ops": 4, "torch": 4, "floor": 4}
    y = [float(point.split(",")[1]) for point in points["torch"]]
    assert y[0] == y[1] and y[1] - y[2] == pytest.approx(y[2] - y[3], abs=0.2), "twice the time is one step of the axis"
    assert points["floor"][0].split(",")[1] == points["floor"][3].split(",")[1]


def test_rows_of_one_size_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"rows": [{"shape": [1, 2, "bfloat16"], "reduction": "mean", "name": "torch", "ms": [1.0]}]}))
    assert plot_peers.main([str(file)]) == 2
    assert "four sizes" in capsys.readouterr().err

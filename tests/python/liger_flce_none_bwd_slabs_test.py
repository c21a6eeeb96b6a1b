"""What plot_slabs.py draws of the bench's runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "reports" / "evidence" / "liger_flce_none_bwd"
sys.path[:0] = [str(ROOT / "repro" / "bench"), str(ROOT / "repro" / "liger_flce_none_bwd")]

import plot_slabs  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def drawn(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert plot_slabs.main([str(path)]) == 0
    return capsys.readouterr().out


def test_the_evidence_is_drawn_from_its_own_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert drawn(EVIDENCE / "bench-h200.json", capsys) == (EVIDENCE / "slabs-h200.svg").read_text()


def test_every_size_of_a_tile_is_a_point_and_the_default_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": "patchbench::flce (cuda)", "reduction": r, "median_ms": 10.0 + mib / 100, "peak_bytes": mib << 20, **tile}
        for r in ("none", "mean")
        for mib, tile in [(999, {}), *((mib, {"chunk_mib": mib}) for mib in (1, 2, 4, 8))]
    ]
    rows.append({"name": "plain torch", "reduction": "mean", "median_ms": 12.0, "peak_bytes": 1 << 30})
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"runs": [{"rows": rows}, {"rows": []}]}))
    lines = list(ElementTree.fromstring(drawn(file, capsys)).iter(f"{SVG}polyline"))
    points = [len(line.get("points").split()) for line in lines if line.find(f"{SVG}title").text == "patchbench::flce"]
    assert points == [4, 4, 4, 4]
    assert len(lines) == 6, "four of the op, and plain torch's time and memory under mean"


def test_runs_with_one_size_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"runs": [{"rows": [{"chunk_mib": 64}]}]}))
    assert plot_slabs.main([str(file)]) == 2
    assert "several sizes" in capsys.readouterr().err

"""What scaling.py draws of a measurement, and that each op's line is on every path that the op has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "repro" / "bench"
EVIDENCE = ROOT / "reports" / "evidence" / "spine"
sys.path.insert(0, str(BENCH))

import curves  # noqa: E402
import scaling  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"
# The floor of `op` takes 1 ms for 1e9 FLOPs.
REPORT = {
    "rates": {"flops": 1e12, "bytes": 1e12},
    "series": [
        {"op": "op", "axis": "rows", "path": scaling.KERNEL,
         "points": [{"size": 1, "ms": [2.0, 1, 3], "flops": 10**9}, {"size": 2, "ms": [20.0, 1, 3], "flops": 10**10}]},
        {"op": "op", "axis": "rows", "path": scaling.CPU, "points": [{"size": 1, "ms": [9.0, 1, 3], "flops": 10**8}]},
        {"op": "other", "axis": "rows", "path": scaling.FALLBACK, "points": [{"size": 1, "ms": [0.5, 1, 3], "bytes": 10**6}]},
    ],
}  # fmt: skip


def lines(svg: str) -> dict[str, list[list[tuple[float, float]]]]:
    found: dict[str, list[list[tuple[float, float]]]] = {}
    for line in ElementTree.fromstring(svg).iter(f"{SVG}polyline"):
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        found.setdefault(line.find(f"{SVG}title").text, []).append(points)
    return found


def test_a_time_at_the_floors_rate_lies_on_the_floor_and_twice_it_above() -> None:
    drawn = lines(scaling.drawn(REPORT))
    (first, second), floor = drawn[scaling.KERNEL][0], drawn["floor"][0]
    slope = (floor[1][1] - floor[0][1]) / (floor[1][0] - floor[0][0])
    decade = curves.HEIGHT / 2  # 1 to 100 ms
    for x, y in (first, second):
        above = floor[0][1] + slope * (x - floor[0][0]) - y
        assert above == pytest.approx(decade * 0.30103, abs=0.3)


def test_each_op_has_a_panel_with_named_axes_and_each_path_its_mark() -> None:
    root = ElementTree.fromstring(scaling.drawn(REPORT))
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"op, by rows", "other, by rows", "FLOPs of the products", "bytes of operands and results"} <= set(words)
    assert words.count("ms") == 2
    marks = [path.get("d").split("m", 1)[1] for path in root.iter(f"{SVG}path") if "m" in path.get("d")]
    points, legend = 4, len(scaling.COLOURS)
    assert len(marks) == points + legend
    assert len(set(marks)) == len(scaling.COLOURS), "two paths share a mark"


def test_the_fall_back_is_not_called_plain_torch_and_what_a_step_leaves_out_is_in_its_title() -> None:
    assert "torch" not in scaling.FALLBACK and "fall-back" in scaling.FALLBACK
    row = REPORT["series"][2] | {"op": "sparse_mla_fp8"}
    assert "sparse_mla_fp8, by rows (quantisation not timed)" in scaling.drawn(REPORT | {"series": [row]})


def test_the_evidence_is_drawn_from_its_own_numbers_and_every_op_has_five_sizes_on_each_path() -> None:
    report = json.loads((EVIDENCE / "scaling-h200.json").read_text())
    assert (EVIDENCE / "scaling-h200.svg").read_text() == scaling.drawn(report)
    paths: dict[str, set[str]] = {}
    for row in report["series"]:
        paths.setdefault(row["op"], set()).add(row["path"])
        assert len(row["points"]) >= 5, (row["op"], row["path"])
    assert len(paths) == 10
    assert all({scaling.FALLBACK, scaling.CPU} < names for names in paths.values())


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((), 4, "no CUDA device"),
        (("--once", "sparse_mla", "64"), 4, "no CUDA device"),
        (("--once", "sparse_mal", "64"), 2, "no op 'sparse_mal'; one of: flce, mean; "),
    ],
)
def test_without_a_device_it_says_so_and_measures_nothing(words: tuple[str, ...], status: int, said: str) -> None:
    pytest.importorskip("torch")
    environment = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, BENCH / "scaling.py", *words], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr

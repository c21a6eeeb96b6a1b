"""What ratios.py says and draws of the benches' documents."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "repro" / "bench"))

import ratios  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def times(ms: float) -> list[float]:
    return [ms, ms, ms]


def mimo(*rows: dict) -> dict:
    """A document of the MIMO bench with one row for each of 512, 1024, ..."""
    shapes = [[1, 512 << i, 4, 32, 8, 128, 64, 0] for i in range(len(rows))]
    axes = "batch, seqlen, ranks, heads, groups, head_dim_qk, head_dim_v, packed sequences (0: none)"
    both = [{"shape": shape, "copy of the floor": times(0.1)} | row for shape, row in zip(shapes, rows, strict=True)]
    return {"bench": "patchbench::mamba3_mimo_bwd", "shape_is": axes, "versions": {"mamba-ssm": "2.0"}, "rows": both}


def faster(ours: float, theirs: float) -> dict:
    return {"ours": times(ours), "mamba-ssm": times(theirs), "of_best_peer": {"peer": "mamba-ssm", "ratio": round(ours / theirs, 3)}}


def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], *documents: dict) -> tuple[int, str, list[list[str]]]:
    """The exit, the drawing, and the cells of the table's rows of sizes."""
    files = [tmp_path / f"{i}.json" for i in range(len(documents))]
    for file, document in zip(files, documents, strict=True):
        file.write_text(json.dumps(document))
    status = ratios.main([str(file) for file in files])
    done = capsys.readouterr()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.err.splitlines()]
    return status, done.out, [row for row in rows if row[0] and row[1:2] not in (["ms"], ["---"])]


def test_each_size_has_its_ratios_in_the_table_and_above_its_point(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, drawing, rows = told(tmp_path, capsys, mimo(faster(1.0, 4.0), faster(3.0, 4.0)))
    assert rows == [
        ["ours, 512", "1.0", "mamba-ssm 2.0", "0.250", "0.250", ""],
        ["ours, 1024", "3.0", "mamba-ssm 2.0", "0.750", "0.750", ""],
    ]
    assert status == 0
    root = ElementTree.fromstring(drawing)
    words = {text.text.strip("\u00a0"): text for text in root.iter(f"{SVG}text")}
    lines = {line.find(f"{SVG}title").text: line for line in root.iter(f"{SVG}polyline")}
    assert set(lines) == {"ours", "mamba-ssm 2.0"} <= set(words)
    places = [point.split(",") for point in lines["ours"].get("points").split()]
    assert [words[ratio].get("x") for ratio in ("0.25", "0.75")] == [x for x, _ in places]
    highest = min(float(point.split(",")[1]) for line in lines.values() for point in line.get("points").split())
    assert all(float(words[one].get("y")) < highest for one in ("0.25", "0.75", *lines)), "words lie over a line"
    assert words["0.25"].get("fill") == lines["mamba-ssm 2.0"].get("stroke") != lines["ours"].get("stroke")


def test_a_size_without_a_peer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = {"ours": times(2.0), "mamba-ssm not run": "ValueError: groups"}
    status, drawing, rows = told(tmp_path, capsys, mimo(faster(1.0, 4.0), alone))
    assert status == 1 and [row[5] for row in rows] == ["", "no peer ran"] and rows[1][2:5] == ["", "", ""]
    assert "0.25" in drawing


def test_an_op_slower_than_the_release_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, drawing, rows = told(tmp_path, capsys, mimo(faster(1.0, 4.0), faster(4.4, 4.0)))
    assert status == 1 and [row[5] for row in rows] == ["", "slower than the release"]
    assert ">0.25<" in drawing and ">1.10!<" in drawing


def test_a_size_that_failed_or_that_the_op_lacks_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, rows = told(tmp_path, capsys, mimo(faster(1.0, 4.0), {"failed": "RuntimeError: CUDA error"}))
    assert status == 1 and rows[-1][0].startswith("not measured: patchbench::mamba3_mimo_bwd, [1, 1024, ")
    status, _, rows = told(tmp_path, capsys, mimo(faster(1.0, 4.0), {"mamba-ssm": times(4.0)}))
    assert status == 1 and rows[1] == ["ours, 1024", "", "", "", "", "not measured"]


def test_the_best_forward_and_backward_of_others_are_a_peer_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def one(queries: int) -> dict:
        ms = {"A forward": 1.0, "B backward": 2.0, "patchbench forward": 2.0, "patchbench step": 6.0, "megatron-core step": 12.0}
        ms |= {"A forward + B backward": 3.0, "A forward + C backward": 4.0}
        best = {"forward": {"peer": "A forward", "ratio": 2.0}, "step": {"peer": "megatron-core step", "ratio": 0.5}}
        best["step of parts"] = {"peer": "A forward + B backward", "ratio": 2.0}
        return {"shape": [1, queries, "uniform"], "of_best_peer": best} | {name: {"ms": times(t), "error": {}} for name, t in ms.items()}

    document = {"bench": "patchbench::sparse_mla", "shape_is": "batch, queries, set of indices", "rows": [one(64), one(128)]}
    status, drawing, rows = told(tmp_path, capsys, document)
    assert status == 1 and len(rows) == 6
    assert rows[0] == ["patchbench, 64", "2.0", "A", "2.000", "", "the release did not run"]
    assert rows[4] == ["patchbench, 64", "6.0", ratios.PARTS, "2.000", "0.500", ""]
    assert rows[2] == ["patchbench, 64", "", "", "", "", "not measured"], "the op's backward"
    assert drawing.count(f"<title>{ratios.PARTS}</title>") == 1


def test_each_reduction_has_a_panel_and_each_form_of_the_op_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(tokens: int) -> dict:
        best = {"peer": "plain torch", "ratio": 0.5}
        names = {"patchbench::flce": 1.0, "patchbench::flce, all logits kept": 1.5, "plain torch": 2.0, "liger-kernel, Triton": 3.0}
        rows = [{"name": name, "reduction": "none", "error": {}, "median_ms": ms} for name, ms in names.items()]
        rows = [row | {"of_best_peer": best} if row["name"].startswith("patchbench") else row for row in rows]
        rows += [row | {"reduction": "mean"} for row in rows if row["name"] != "patchbench::flce, all logits kept"]
        return {"shape": [tokens, 8], "rows": [*rows, {"name": "floor: 3 products", "reduction": "mean", "median_ms": 0.1}], "not_run": {}}

    document = {"bench": "patchbench::flce beside its peers", "shape_is": "tokens, vocab", "runs": [run(4), run(8)]}
    status, drawing, rows = told(tmp_path, capsys, document, document | {"runs": [run(16)]})
    forms = ["patchbench::flce", "patchbench::flce", "patchbench::flce, all logits kept", "patchbench::flce, all logits kept"]
    assert status == 0 and [row[0].rpartition(", ")[0] for row in rows[:4]] == forms and len(rows) == 6 + 3
    titles = [text.text for text in ElementTree.fromstring(drawing).iter(f"{SVG}text")]
    assert [title for title in titles if "flce, " in title and "kept" not in title] == ["patchbench::flce, none", "patchbench::flce, mean"]
    assert "floor" not in drawing and ">16<" not in drawing, "a single size has no panel"


def test_without_a_file_it_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert ratios.main([]) == ratios.main(["--help"]) == 2
    assert "BENCH.json" in capsys.readouterr().err


MEASURED = ["sparse_mla_dims", "liger_flce_none_bwd", "liger_flce_none_bwd-0.8.0", "te_fused_ce", "te_fused_ce-2.10.0",
            "mamba3_siso_bwd_cse", "mamba3_mimo_gqa_bwd", "dsa_graph_capture"]  # fmt: skip


def test_the_evidence_is_drawn_from_its_own_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    spine = ROOT / "reports" / "evidence" / "spine"
    status = ratios.main([str(spine / f"ratios-{name}-h200.json") for name in MEASURED])
    done = capsys.readouterr()
    assert done.out == (spine / "ratios-h200.svg").read_text()
    faults = [line for line in done.err.splitlines() if line.startswith("| ") and line.split("|")[-2].strip()]
    # In these rows only the release 0.8.0 ran, and a program with wrong results does not count as a peer.
    assert status == 1 and len(faults) == 6, faults
    assert all(row.startswith("| patchbench::flce, ") and "no peer ran" in row for row in faults), faults

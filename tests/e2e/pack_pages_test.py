"""The packs' pages, their drawings and README's table show what the committed records say (env/pack_figures.py)."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from answers import ROOT

pack_figures = importlib.import_module("pack_figures")  # answers.py has put env/ on the path
DRAWINGS = sorted((ROOT / "reports/evidence").glob("*/window.svg"))


def test_every_page_shows_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    assert pack_figures.main(["--check"]) == 0, capsys.readouterr().out


def test_a_page_that_is_out_of_date_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    page.write_text("old\n")
    monkeypatch.setattr(pack_figures, "ROOT", tmp_path)
    monkeypatch.setattr(pack_figures, "wanted", lambda: {page: "new\n"})
    assert pack_figures.main(["--check"]) == 1 and "README.md: not what the records say" in capsys.readouterr().out
    assert page.read_text() == "old\n" and pack_figures.main([]) == 0 and page.read_text() == "new\n"


def test_a_cell_is_the_one_number_that_its_keys_lead_to(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text(
        '{"rows": [{"name": "a", "ms": [[1.5, 0], [2.5, 0]], "bytes": 2147483648}, {"name": "b", "ms": [[8, 1]]}], "x": 4}'
    )

    def shown(cell: object) -> str:
        return pack_figures.shown(cell, tmp_path, "bench.json")

    assert shown("words") == "words" and shown(["x"]) == "4"
    assert shown(["rows", {"name": "a"}, "ms", "*", 0]) == "2" and shown(["rows", 1, "ms", 0, 0]) == "8"
    assert shown({"at": ["rows", 0, "bytes"], "in": "GiB"}) == "2"
    assert shown({"ratio": [["rows", {"name": "a"}, "ms", 0, 0], ["x"]]}) == "0.375"
    with pytest.raises(ValueError):
        shown(["rows", {"name": "c"}, "ms"])
    with pytest.raises(KeyError):
        shown(["y"])


def test_a_number_that_its_file_withdraws_is_not_shown(tmp_path: Path) -> None:
    rows = [{"shape": [size], "ours": 1.0, "theirs": {"ms": [2.0]}} for size in (1, 2)]
    withdrawn = [{"at": ["rows", {"shape": [1]}, "theirs"], "why": "it was not asked"}]
    (tmp_path / "bench.json").write_text(json.dumps({"withdrawn": withdrawn, "rows": rows}))

    def shown(size: int, *keys: object) -> str:
        return pack_figures.shown(["rows", {"shape": [size]}, *keys], tmp_path, "bench.json")

    assert shown(1, "ours") == "1" and shown(2, "theirs", "ms", 0) == "2"
    with pytest.raises(ValueError, match="is withdrawn: it was not asked"):
        shown(1, "theirs", "ms", 0)
    with pytest.raises(ValueError, match="is withdrawn"):
        pack_figures.shown({"ratio": [["rows", {"shape": [2]}, "ours"], ["rows", {"shape": [1]}, "theirs"]]}, tmp_path, "bench.json")
    assert pack_figures.covers(["rows", "*", "of_best_peer"], ["rows", {"shape": [2]}, "of_best_peer", "ratio"])


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.parent.name)
def test_a_drawing_is_small_and_its_texts_lie_apart_inside_it(path: Path) -> None:
    assert path.stat().st_size <= 8 * 1024
    drawing, places = ElementTree.parse(path).getroot(), []
    for text in drawing.iter("{http://www.w3.org/2000/svg}text"):
        if "transform" in text.attrib:
            x, y = map(float, re.match(r"translate\((\d+) (\d+)\)", text.attrib["transform"]).groups())
            places.append((x, y, 12.0))  # turned: as wide as a line is high, at its foot
        else:
            width = 6.8 * len(text.text)
            x = float(text.attrib["x"]) - (width if text.attrib.get("text-anchor") == "end" else 0)
            places.append((x, float(text.attrib["y"]), width))
    for i, (x, y, width) in enumerate(places):
        assert x >= 0 and x + width <= float(drawing.attrib["width"]), (x, y)
        for other_x, other_y, other_width in places[i + 1 :]:
            assert abs(y - other_y) >= 10 or x + width <= other_x or other_x + other_width <= x, (x, y)

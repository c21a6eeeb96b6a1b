#!/usr/bin/env python3
"""Draws time over vocabulary and tokens, for the op and its peers.

    PYTHONPATH=repro/bench python3 plot_peers.py bench-h100.json > peers-h100.svg

Rows in bfloat16 with the mean are drawn, both axes logarithmic: one panel for each vocabulary or number of tokens of which the file has
four sizes or more. The same file gives the same bytes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from curves import Panel, Point, drawing

OP, FLOOR = "patchbench_ops", "floor"
COLOURS = {
    OP: "#0072b2", "TransformerEngine": "#d55e00", "liger-kernel": "#009e73", "torch": "#7a3e9d", "torch.compile": "#a6761d",
    FLOOR: "#000000",
}  # fmt: skip
MARKS = {COLOURS[OP]: "circle", COLOURS["TransformerEngine"]: "diamond", COLOURS["liger-kernel"]: "triangle", COLOURS["torch"]: "square"}
AXES = ("tokens", "vocabulary")


def panel(rows: list[dict], fixed: int, size: int) -> Panel:
    """Milliseconds over the other axis, of the rows whose axis `fixed` (0 tokens, 1 vocabulary) is `size`."""
    mine = [row for row in rows if row["shape"][fixed] == size]
    lines = []
    for name, colour in COLOURS.items():
        rows_of = [row for row in mine if row["name"] == (OP if name == FLOOR else name)]
        points = {row["shape"][1 - fixed]: row["floor_ms"] if name == FLOOR else row["ms"][0] for row in rows_of}
        if points:
            lines.append((colour, name, [(math.log2(x), math.log2(y)) for x, y in sorted(points.items())]))
    xs = sorted({x for _, _, points in lines for x, _ in points})
    ys = [y for _, _, points in lines for _, y in points]
    span: Point = (math.floor(min(ys)), math.ceil(max(ys)))
    ticks = [(float(i), f"{2.0**i:.3g}") for i in range(int(span[0]), int(span[1]) + 1, 2)]
    return Panel(
        f"{size} {('tokens', 'classes')[fixed]}", (xs[0], xs[-1]), span, [(x, f"{2**x:.0f}") for x in xs[:: 2 - (len(xs) < 7)]], ticks,
        lines, (AXES[1 - fixed], "ms, forward and backward"), MARKS,
    )  # fmt: skip


def main(words: list[str]) -> int:
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    rows = [row for row in json.loads(Path(words[0]).read_text())["rows"] if "ms" in row and row["reduction"] == "mean"]
    rows = [row for row in rows if row["shape"][2] == "bfloat16"]
    panels = []
    for fixed in (0, 1):
        sizes = sorted({row["shape"][fixed] for row in rows})
        panels += [panel(rows, fixed, n) for n in sizes if len({row["shape"][1 - fixed] for row in rows if row["shape"][fixed] == n}) > 3]
    if not panels:
        print(f"plot_peers.py: {words[0]} has no axis with four sizes; see bench_cross_entropy.py without --shape", file=sys.stderr)
        return 2
    sys.stdout.write(drawing(panels, [(colour, name) for name, colour in COLOURS.items()], columns=len(panels)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

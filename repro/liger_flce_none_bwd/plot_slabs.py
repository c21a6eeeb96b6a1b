#!/usr/bin/env python3
"""Draws time and memory over the size of a tile of logits (PYTHONPATH=repro/bench): `plot_slabs.py bench-h200.json > slabs-h200.svg`.

The last run of the file that has several sizes of tile is drawn: one column for each reduction, time above, memory beside the
inputs below, what the other programs of that run took as level lines. The same file gives the same bytes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from curves import Panel, drawing

OP = "#0072b2"
PEERS = {"plain torch": "#009e73", "liger-kernel": "#d55e00", "floor": "#000000"}
GIB = 2.0**30


def panel(rows: list[dict], reduction: str, key: str, unit: float, name: str) -> Panel:
    """`key` of the rows of one reduction over the tile's MiB."""
    mine = [row for row in rows if row["reduction"] == reduction]
    tiles = sorted((row["chunk_mib"], row[key] / unit) for row in mine if "chunk_mib" in row)
    ends = (tiles[0][0], tiles[-1][0])
    lines = [(OP, "patchbench::flce", [(math.log2(mib), value) for mib, value in tiles])]
    for row in mine:
        peer = next((peer for peer in PEERS if row["name"].startswith(peer)), None)
        if peer and key in row and "scaled" not in row["name"]:
            lines.append((PEERS[peer], row["name"], [(math.log2(end), row[key] / unit) for end in ends]))
    top = max(y for _, _, points in lines for _, y in points)
    step = next(step for step in (0.5, 1, 2, 5, 10, 20) if top / step < 10)
    ticks = [(i * step, f"{i * step:g}") for i in range(math.ceil(top / step) + 1)]
    span = (math.log2(ends[0]), math.log2(ends[1]))
    words = [(math.log2(mib), str(mib)) for mib, _ in tiles]
    return Panel(
        f"reduction={reduction}", span, (0.0, ticks[-1][0]), words, ticks, lines, ("MiB of a tile of logits", name), {OP: "circle"}
    )


def main(words: list[str]) -> int:
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    runs = json.loads(Path(words[0]).read_text())["runs"]
    several = [run["rows"] for run in runs if sum("chunk_mib" in row for row in run["rows"]) > 4]
    if not several:
        print(f"plot_slabs.py: no run of {words[0]} has several sizes of tile; see bench_liger_flce_none_bwd --chunk-mib", file=sys.stderr)
        return 2
    quantities = (("median_ms", 1.0, "ms, forward and backward"), ("peak_bytes", GIB, "GiB beside the inputs"))
    panels = [panel(several[-1], r, *quantity) for quantity in quantities for r in ("none", "mean")]
    sys.stdout.write(drawing(panels, [(OP, "patchbench::flce"), *((colour, peer) for peer, colour in PEERS.items())], columns=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

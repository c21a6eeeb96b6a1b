#!/usr/bin/env python3
"""Draws errors over the length of the context (PYTHONPATH=repro/bench:env).

`plot_sweep.py RECORDS.jsonl > sweep.svg` from the ledger records of the sweep,
`plot_sweep.py context-h200.json > context-h200.svg` from what context_error.py printed for two trees.

One panel for each set of tracked keys or gradient, both axes logarithmic; one colour for each error source or tree, one line for each
distribution of the data. The same file gives the same bytes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

from curves import Panel, drawing
from records import records_in

SLUG = "sparse_mla_pdp_precision"
SOURCES = {
    "output_bf16": ("#888888", "dKV rounded to bf16"), "delta_bf16": ("#c0392b", "Delta from a bf16 output"),
    "pdp_bf16": ("#1f5fa8", "P, dP staged in bf16"), "sums_fp32": ("#2e8b57", "sums in fp32"),
    "pdp_split": ("#d08700", "P, dP as two bf16 terms"),
}  # fmt: skip
TREES = {"cast": ("#888888", "fp64 rounded to bf16"), "released": ("#c0392b", "released"), "edited": ("#1f5fa8", "with the edit")}

Curves = dict[tuple[str, str], list[tuple[int, float]]]  # (panel, what ends in a source's name) -> (context in k, error)


class Drawing(NamedTuple):
    curves: Curves
    panels: dict[str, str]  # name -> title
    sources: dict[str, tuple[str, str]]  # name -> colour, meaning
    low: float
    high: float


def sweep_of(text: str) -> Drawing:
    """The model's errors by key set and case; of a case that was run twice the later one."""
    curves: Curves = {}
    for line in records_in(text):
        observation = json.loads(line)["predicate"].get("observation", {})
        case = observation.get("case", "")
        if observation.get("subject") != "model" or not case.startswith("sweep_") or case.endswith("_today"):
            continue
        for keys in ("sink", "random"):
            measured = [(name, got) for name, _, got, *_ in observation["measures"] if name.startswith(f"{keys}_")]
            points = sorted((int(name.removeprefix(f"{keys}_").removesuffix("k")), float(got)) for name, got in measured)
            curves[(keys, case)] = points
    panels = {keys: f"{keys} keys: relative error of dKV by context" for keys in ("sink", "random")}
    return Drawing(curves, panels, SOURCES, 1e-8, 1e-2)


def contexts_of(measured: dict) -> Drawing:
    """The errors of two trees on a GPU, and of the cast."""
    curves: Curves = {}
    panels = {name: f"{name}: relative error by context" for name in ("grad_q", "grad_kv of the sinks")}
    for tree in ("released", "edited"):
        for row in measured[tree]:
            for name in panels:
                curves.setdefault((name, f"{row['data']}_{tree}"), []).append((row["context"] // 1024, row[name]))
                if tree == "released":
                    curves.setdefault((name, f"{row['data']}_cast"), []).append((row["context"] // 1024, row[f"cast of {name}"]))
    return Drawing(curves, panels, TREES, 1e-3, 1e-1)


def panel(drawn: Drawing, name: str) -> Panel:
    """Axes and lines of one panel, in logarithms."""
    contexts = sorted({context for (of, _), points in drawn.curves.items() if of == name for context, _ in points})
    exponents = range(round(math.log10(drawn.low)), round(math.log10(drawn.high)) + 1)
    lines = [
        (colour, case, [(math.log(context), math.log(max(error, drawn.low))) for context, error in points])
        for source, (colour, _) in drawn.sources.items()
        for (of, case), points in sorted(drawn.curves.items())
        if of == name and case.endswith(source)
    ]
    return Panel(
        drawn.panels[name],
        (math.log(contexts[0]), math.log(contexts[-1])),
        (math.log(drawn.low), math.log(drawn.high)),
        [(math.log(context), f"{context}k") for context in contexts],
        [(math.log(10.0**exponent), f"1e{exponent}") for exponent in exponents],
        lines,
    )


def main(words: list[str]) -> int:
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    text_of = Path(words[0]).read_text()
    drawn = contexts_of(json.loads(text_of)) if words[0].endswith(".json") else sweep_of(text_of)
    if not drawn.curves:
        print(f"plot_sweep.py: {words[0]} holds no sweep; run patchbench reproduce {SLUG} --subject model", file=sys.stderr)
        return 2
    sys.stdout.write(drawing([panel(drawn, name) for name in drawn.panels], list(drawn.sources.values())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

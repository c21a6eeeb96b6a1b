#!/usr/bin/env python3
"""Draws the context sweep from ledger records: `plot_sweep.py RECORDS.jsonl > sweep.svg`.

One panel for each set of tracked keys, both axes logarithmic; one colour for each error source, one line for each distribution of the
data. The same records give the same bytes.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

SLUG = "sparse_mla_pdp_precision"
SOURCES = {
    "output_bf16": ("#888888", "dKV rounded to bf16"), "delta_bf16": ("#c0392b", "Delta from a bf16 output"),
    "pdp_bf16": ("#1f5fa8", "P, dP staged in bf16"), "sums_fp32": ("#2e8b57", "sums in fp32"), "pdp_split": ("#d08700", "P, dP as two bf16 terms"),
}  # fmt: skip
WIDTH, HEIGHT, LEFT, TOP, GAP = 360, 300, 62, 46, 40
LOW, HIGH = 1e-8, 1e-2

Curves = dict[tuple[str, str], list[tuple[int, float]]]  # (key set, case) -> (context in k, error)


def curves_of(records: Path) -> Curves:
    """The model's errors by key set and case; of a case that was run twice the later one."""
    curves: Curves = {}
    for line in records.read_text().splitlines():
        observation = json.loads(line)["predicate"].get("observation", {})
        case = observation.get("case", "")
        if observation.get("subject") != "model" or not case.startswith("sweep_") or case.endswith("_today"):
            continue
        for keys in ("sink", "random"):
            measured = [(name, got) for name, _, got, *_ in observation["measures"] if name.startswith(f"{keys}_")]
            points = sorted((int(name.removeprefix(f"{keys}_").removesuffix("k")), float(got)) for name, got in measured)
            curves[(keys, case)] = points
    return curves


def text(x: float, y: float, words: str, anchor: str = "middle", fill: str = "#222222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{words}</text>'


def panel(curves: Curves, keys: str, left: float) -> list[str]:
    """Axes and lines of one key set."""
    contexts = sorted({context for (of, _), points in curves.items() if of == keys for context, _ in points})
    span = math.log(contexts[-1] / contexts[0])

    def at(context: float, error: float) -> tuple[float, float]:
        height = math.log(max(error, LOW) / LOW) / math.log(HIGH / LOW)
        return left + WIDTH * math.log(context / contexts[0]) / span, TOP + HEIGHT * (1 - height)

    drawn = [f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#444444"/>']
    drawn.append(text(left + WIDTH / 2, TOP - 8, f"{keys} keys: relative error of dKV by context"))
    for exponent in range(round(math.log10(LOW)), round(math.log10(HIGH)) + 1):
        y = at(contexts[0], 10.0**exponent)[1]
        drawn.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#dddddd"/>' + text(left - 6, y + 4, f"1e{exponent}", "end"))
    drawn += [text(at(context, LOW)[0], TOP + HEIGHT + 16, f"{context}k") for context in contexts]
    for source, (colour, _) in SOURCES.items():
        for (of, case), points in sorted(curves.items()):
            if of == keys and case.endswith(source):
                path = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in points)
                drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"><title>{case}</title></polyline>')
    return drawn


def plot(curves: Curves) -> str:
    """The whole drawing."""
    width, height = 2 * WIDTH + 2 * LEFT + GAP, TOP + HEIGHT + 48
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">']
    drawn.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for i, keys in enumerate(("sink", "random")):
        drawn += panel(curves, keys, LEFT + i * (WIDTH + LEFT + GAP / 2))
    for i, (colour, meaning) in enumerate(SOURCES.values()):
        drawn.append(text(LEFT - 40 + i * 172, TOP + HEIGHT + 38, f"&#9632; {meaning}", "start", colour))
    return "\n".join([*drawn, "</svg>", ""])


def main(words: list[str]) -> int:
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    curves = curves_of(Path(words[0]))
    if not curves:
        print(f"plot_sweep.py: {words[0]} holds no sweep; run patchbench reproduce {SLUG} --subject model", file=sys.stderr)
        return 2
    sys.stdout.write(plot(curves))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

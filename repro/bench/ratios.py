#!/usr/bin/env python3
"""Draws the time of an op and of its peers by size. At each size it writes the time of the op divided by that of the best peer.

    PYTHONPATH=repro/bench python3 ratios.py BENCH.json... > ratios.svg

A BENCH.json is a document of one of BENCHES. Standard error has a table: for each size and form of the op, its time over that of the best
right peer, and over that of the release that it corrects. The best forward and the best backward of others, in one call, are a peer of a
step, too. A panel's first row holds the ratios of the op's first form, each in its peer's colour; a single size has no panel.
Exit 1: the op is slower than the release, the release or every peer is missing, or a size was not measured.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from curves import HEIGHT, Panel, drawing
from scaling import decades

OPS, RELEASE = ("#0072b2", "#56b4e9"), "#d55e00"
OTHERS = ("#009e73", "#7a3e9d", "#a6761d", "#c51b7d", "#666666", "#b2182b", "#1b7837", "#b8860b", "#4d4d4d", "#000000")
MARKS = dict(zip((*OPS, RELEASE, *OTHERS), ("circle", "circle", "diamond", *("square", "triangle") * 5), strict=True))
LINE, PARTS = 14, "best forward + best backward"


BENCHES = {  # what its rows call the op and the release, the release's package, the place of the main axis in a shape
    "patchbench::sparse_mla": ("patchbench", "megatron-core", "megatron-core", 1),
    "patchbench::flce": ("patchbench::flce", "liger-kernel, Triton", "liger-kernel", 0),
    "patchbench_ops.cross_entropy": ("patchbench_ops", "TransformerEngine", "transformer-engine", 0),
    "mamba-ssm's whole SISO backward": ("three ops in their places, whole", "release, whole", "mamba-ssm", 1),
    "patchbench::mamba3_mimo_bwd": ("ours", "mamba-ssm", "mamba-ssm", 1),
    "patchbench::topk_to_index_mask": ("ours", "megatron-core", "megatron-core", 0),
}


class Curves(NamedTuple):
    """What one panel draws."""

    title: str
    axis: str
    release: str
    ms: dict[str, dict[int, float]]  # program, size
    best: dict[str, dict[int, dict]]  # form of the op, size -> the bench's of_best_peer; empty where no peer ran

    def sizes(self) -> list[int]:
        return sorted({size for times in self.ms.values() for size in times})

    def of_release(self, form: str, size: int) -> float:
        return self.ms.get(form, {}).get(size, math.nan) / self.ms.get(self.release, {}).get(size, math.nan)


def programs(row: dict, op: str, release: str) -> Iterator[tuple[str, str, float, dict]]:
    """Part (a reduction, a step), program, ms and of_best_peer of a row; floors and kernels within a program are left out."""
    best = row.get("of_best_peer", {})
    if "name" in row and "error" in row:
        yield row["reduction"], row["name"], row.get("median_ms") or row["ms"][0], best
    for name, value in row.items():
        if isinstance(value, dict) and " + " in name:
            if name == best.get("step of parts", {}).get("peer"):
                yield "step", name, value["ms"][0], {}
        elif isinstance(value, dict) and "ms" in value:
            program, part = name.rsplit(" ", 1)
            own = [best[key] for key in (part, f"{part} of parts") if key in best and program == op]
            yield part, program, value["ms"][0], max(own, key=lambda one: one["ratio"], default={})
        elif name in (op, release, best.get("peer")):
            yield "", name, value[0], best if name == op else {}


def curves_of(document: dict, lost: list[str]) -> list[Curves]:
    """The curves of one bench; the sizes that were not measured go to `lost`."""
    bench = next(bench for bench in BENCHES if document["bench"].startswith(bench))
    op, release, package, main_axis = BENCHES[bench]
    label, found = {release: f"{release} {document.get('versions', {}).get(package, '')}".strip()}, {}
    for run in document.get("runs", [document]):
        for row in run.get("rows", [run]):
            shape = row.get("shape", run.get("shape"))
            if "failed" in row or isinstance(row.get("not_run"), str):
                lost.append(f"{bench}, {shape}: {row.get('failed', row.get('not_run'))}")
                continue
            size, others = shape[main_axis], [*shape[:main_axis], "*", *shape[main_axis + 1 :]]
            axis = f"{document['shape_is'].split(', ')[main_axis]}: * of {', '.join(map(str, others))}"
            for part, program, ms, best in programs(row, op, release):
                new = Curves(f"{bench}, {part}" if part else bench, axis, label[release], {}, {op: {}})
                one = found.setdefault((part, *others), new)
                called, peer = (PARTS if " + " in name else name.removesuffix(f" {part}") for name in (program, best.get("peer", "")))
                one.ms.setdefault(label.get(called, called), {})[size] = ms
                if best:
                    one.best.setdefault(program, {})[size] = best | {"peer": label.get(peer, peer)}
    return list(found.values())


def table(one: Curves) -> tuple[list[str], bool]:
    """The rows of one panel, and whether each form of the op has a peer at each size and is not slower than the release."""
    rows, is_right = [f"| {one.title}; {one.axis} | ms | best peer | ms / its ms | ms / {one.release} | |", "|---" * 6 + "|"], True
    for form, best in one.best.items():
        for size in one.sizes():
            ms, peer, share = one.ms.get(form, {}).get(size), best.get(size), one.of_release(form, size)
            fault = "not measured" if not ms else "no peer ran" if not peer else "slower than the release" if share > 1 else ""
            fault = fault or ("the release did not run" if math.isnan(share) else "")
            is_right = is_right and not fault
            told = f"{peer['peer']} | {peer['ratio']:.3f}" if peer else " | "
            rows.append(f"| {form}, {size} | {ms or ''} | {told} | {'' if math.isnan(share) else f'{share:.3f}'} | {fault} |")
    return [*rows, ""], is_right


def panel(one: Curves) -> Panel:
    """The programs' names are above all lines, and the ratios above the names."""
    others = [name for name in one.ms if name not in (*one.best, one.release)]
    order = [*zip(one.best, OPS, strict=False), (one.release, RELEASE), *zip(others, OTHERS, strict=False)]
    colours = {name: colour for name, colour in order if name in one.ms}
    sizes, times = one.sizes(), [ms for points in one.ms.values() for ms in points.values()]
    (low, _), ticks = decades(times)
    high = low + (math.log10(max(times)) - low) / (1 - (len(colours) + 2) * LINE / HEIGHT)
    left, right, margin = math.log10(sizes[0]), math.log10(sizes[-1]), math.log10(sizes[-1] / sizes[0]) / 12
    rows = [high - (high - low) * LINE * (i + 1) / HEIGHT for i in range(len(colours) + 1)]
    notes = [((left - margin, y), f"&#160;{name}", "start", colours[name]) for name, y in zip(colours, rows[1:], strict=True)]
    form, best = next(iter(one.best.items()))
    for size, peer in best.items():
        words = f"{peer['ratio']:.2f}" + "!" * (one.of_release(form, size) > 1)
        notes.append(((math.log10(size), rows[0]), words, "middle", colours[peer["peer"]]))
    lines = [(c, name, [(math.log10(size), math.log10(ms)) for size, ms in sorted(one.ms[name].items())]) for name, c in colours.items()]
    axes = (one.axis, "ms; first row: op / best peer (!: slower than the release)")
    ticks_x, ticks_y = [(math.log10(size), str(size)) for size in sizes], [tick for tick in ticks if tick[0] <= high]
    return Panel(one.title, (left - margin, right + margin), (low, high), ticks_x, ticks_y, lines, axes, MARKS, notes)


def drawn(curves: list[Curves]) -> str:
    return drawing([panel(one) for one in curves if len(one.sizes()) > 1], [], columns=4)


def main(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    lost: list[str] = []
    curves = [one for word in words for one in curves_of(json.loads(Path(word).read_text()), lost)]
    tables = [table(one) for one in curves]
    print("\n".join([row for rows, _ in tables for row in rows] + [f"not measured: {one}" for one in lost]), file=sys.stderr)
    print(drawn(curves), end="")
    return 0 if all(is_right for _, is_right in tables) and not lost else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

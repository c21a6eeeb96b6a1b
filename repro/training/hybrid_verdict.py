"""Whether the training runs of train_hybrid.py agree.

    PYTHONPATH=repro/bench python3 hybrid_verdict.py LOSSES.json ... [--svg FILE] > verdict.json

Rule, made before the runs: a run's tail is its mean loss over the last 50 steps (or the later half, if that is shorter). The noise is
the largest difference between the tails of two seeds of one variant among those whose head is right: mitigated and patched. Two
variants agree where the means of their tails over the seeds differ by no more than the noise. How a variant goes wrong is told by
the head's gradients against float32, and by the steps in which every gradient was exactly zero.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from curves import Panel, drawing

TAIL, MANY = 50, 10
COLOURS = {"raw": "#c0392b", "mitigated": "#2e8b57", "patched": "#1f5fa8"}
RIGHT = ("mitigated", "patched")

Runs = dict[str, list[dict[str, Any]]]  # variant -> its runs by seed


def read(paths: list[Path]) -> Runs:
    """ValueError unless every variant was run with the same seeds, two at least, for as many steps on the same thing."""
    runs: Runs = {}
    for path in paths:
        one = json.loads(path.read_text())
        runs.setdefault(one["variant"], []).append(one)
    for of_variant in runs.values():
        of_variant.sort(key=lambda one: one["seed"])
    alike = {
        json.dumps([[one["seed"], len(one["losses"]), one["model"], one["batch"], one["hardware"]] for one in of_variant])
        for of_variant in runs.values()
    }
    if set(runs) != set(COLOURS) or len(alike) != 1 or len(runs["raw"]) < 2:
        raise ValueError(
            f"wants raw, mitigated and patched, each with the same two seeds or more, steps, model and device; got {sorted(runs)}"
        )
    return runs


def tail_of(run: dict[str, Any]) -> float:
    losses = run["losses"]
    return statistics.mean(losses[-min(TAIL, len(losses) // 2) :])


def wrongness(of_variant: list[dict[str, Any]]) -> dict[str, Any]:
    """The head's relative errors against float32, in all checked steps and in those whose row 0 counts, and the steps that trained
    nothing."""
    checks = [(check, one["is_first_row_masked"][check["step"]]) for one in of_variant for check in one["checks"]]
    steps = [(norm == 0, masked) for one in of_variant for norm, masked in zip(one["norms"], one["is_first_row_masked"], strict=True)]
    found: dict[str, Any] = {
        "num_checks": len(checks),
        "num_steps": len(steps),
        "steps_with_row_0_masked": sum(masked for _, masked in steps),
        "steps_without_gradient": sum(zero for zero, _ in steps),
        "of_those_with_row_0_masked": sum(zero and masked for zero, masked in steps),
    }
    for name in [name for name in ("grad_hidden", "grad_weight") if name in checks[0][0]]:
        errors, counted = [c[name] for c, _ in checks], [c[name] for c, masked in checks if not masked]
        found[name] = {"median": shortened(statistics.median(errors)), "largest": max(errors)}
        found[name] |= {"median_where_row_0_counts": shortened(statistics.median(counted)), "least_there": min(counted)} if counted else {}
    return found


def shortened(x: float) -> float:
    return float(f"{x:.4g}")


def judge(runs: Runs) -> dict[str, Any]:
    tails = {variant: [tail_of(one) for one in of_variant] for variant, of_variant in runs.items()}
    noise = max(abs(a - b) for variant in RIGHT for a, b in itertools.combinations(tails[variant], 2))
    means = {variant: statistics.mean(of_variant) for variant, of_variant in tails.items()}
    pairs = {}
    for a, b in itertools.combinations(sorted(means), 2):
        same_seed = max(abs(x - y) for x, y in zip(tails[a], tails[b], strict=True))
        apart = abs(means[a] - means[b])
        pairs[f"{a} - {b}"] = {"apart": shortened(apart), "largest_of_a_seed": shortened(same_seed), "agree": apart <= noise}
    first = runs["patched"][0]
    return {
        "rule": " ".join((__doc__ or "").split("Rule, made before the runs: ")[1].split()),
        **{key: first[key] for key in ("model", "batch", "hardware")},
        "num_steps": len(first["losses"]),
        "seeds": [one["seed"] for one in runs["patched"]],
        "revisions": {variant: of_variant[0]["revisions"] for variant, of_variant in runs.items()},
        "mitigations": runs["mitigated"][0]["mitigations"],
        "tails": {variant: [shortened(x) for x in of_variant] for variant, of_variant in tails.items()},
        "noise": shortened(noise),
        "pairs": pairs,
        "head": {variant: wrongness(of_variant) for variant, of_variant in runs.items()},
        "losses": {variant: {str(one["seed"]): one["losses"] for one in of_variant} for variant, of_variant in runs.items()},
    }


def smoothed(losses: list[float]) -> list[tuple[float, float]]:
    """(step, mean of the MANY losses around it)."""
    return [(i + MANY / 2, statistics.mean(losses[i : i + MANY])) for i in range(len(losses) - MANY + 1)]


def plot(runs: Runs) -> str:
    """The whole curves, and their later half with an axis of its own."""
    lines = [(COLOURS[v], f"{v}, seed {one['seed']}", smoothed(one["losses"])) for v in COLOURS for one in runs[v]]
    most = len(runs["raw"][0]["losses"])
    panels = []
    for first, tenths in ((0, 10), (most // 2, 1)):
        cut = [(colour, name, [point for point in points if point[0] >= first]) for colour, name, points in lines]
        values = [y * 10 for _, _, points in cut for _, y in points]
        low, high = (math.floor(min(values)) if first else 0), math.ceil(max(values))
        ticks_x = [(float(x), str(x)) for x in range(first, most + 1, max(1, (most - first) // 4))]
        ticks_y = [(y / 10, f"{y / 10:g}") for y in range(low, high + 1, tenths)]
        title = f"loss of the counted tokens by step, mean of {MANY} steps"
        panels.append(Panel(title, (float(first), float(most)), (low / 10, high / 10), ticks_x, ticks_y, cut))
    return drawing(panels, list(zip(COLOURS.values(), COLOURS, strict=True)))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("losses", type=Path, nargs="+", metavar="LOSSES.json")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    arguments = parser.parse_args(words)
    try:
        runs = read(arguments.losses)
    except (OSError, ValueError, KeyError) as e:
        print(f"hybrid_verdict.py: {e}", file=sys.stderr)
        return 2
    print("{" + ",".join(f"\n {json.dumps(key)}: {json.dumps(value)}" for key, value in judge(runs).items()) + "\n}")
    if arguments.svg:
        arguments.svg.write_text(plot(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())

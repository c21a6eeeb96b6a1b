"""Random code and settings with "# patchbench: ignore": only a comment on the line of a place, with its pack and a reason, ignores it."""

from __future__ import annotations

import random
from pathlib import Path

from scan_test import LIGER, document

NUM_FILES = 300
TRAINER = "trainer_grad_accumulation"
HIT = 'L(reduction="none")'
HEAD = "from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss as L"
GOOD = (
    "# patchbench: ignore {} the losses are summed",
    "#patchbench:ignore {} why",
    "# x # patchbench:  ignore  {}  why",
    "#\tpatchbench: ignore {} é",
)
BAD = (
    "# patchbench: ignore {}",
    "# patchbench: ignore",
    "# patchbench: ignore other_pack why",
    "# patchbench: ignored {} why",
    "# patchbench ignore {} why",
    "# patchbench: ignore {}, why",
    "# Patchbench: ignore {} why",
    "# patchbench: ignore why {}",
)
TEXTS = (
    '"# patchbench: ignore {} why"',
    "'''\n# patchbench: ignore {} why\n'''",
    'f"{{1}} # patchbench: ignore {} why"',
    'r"\\# patchbench: ignore {} why"',
)
OTHERS = (
    "x = 1",
    "def f():\n    return (1,\n            2)",
    "y = '''a\n\nb'''",
    "z = 'a\\\n  b'",
    "",
    "# é\u2028 \x0b",
    "w = '\x0c\x1c\x85'",
    "\x0cv = 2",
)


def a_file(draw: random.Random) -> tuple[str, dict[int, bool]]:
    """Code, and of each line of it with a hit whether a comment ignores it."""
    lines, hits = [HEAD], {}
    for _ in range(draw.randint(1, 8)):
        kind = draw.choice(("hit", "ignored", "bad", "text", "other", "comment"))
        said = draw.choice(GOOD if kind in ("ignored", "comment") else BAD if kind == "bad" else TEXTS).format(LIGER)
        number = sum(line.count("\n") + 1 for line in lines) + 1
        if kind in ("hit", "ignored", "bad"):
            hits[number] = kind == "ignored"
            lines.append(HIT + ("" if kind == "hit" else draw.choice(("", " ", "  ; x = 2 ")) + said))
        elif kind == "text":
            is_behind = "\n" in said  # the text ends on another line
            hits[number + (2 if is_behind else 0)] = False
            lines.append(f"t = {said}; {HIT}")
        else:
            lines.append(draw.choice(OTHERS) if kind == "other" else said)
    return draw.choice(("\n", "\n", "\r\n", "\r")).join("\n".join(lines).split("\n")), hits


def ignored(found: dict, slug: str) -> dict[tuple[str, int], bool]:
    return {(Path(one["file"]).name, one["line"]): bool(one["ignored"]) for one in found["code"] if one["slug"] == slug}


def test_only_a_comment_on_its_line_ignores_a_call(tmp_path: Path) -> None:
    wanted: dict[tuple[str, int], bool] = {}
    for i in range(NUM_FILES):
        text, hits = a_file(random.Random(i))
        (tmp_path / f"{i}.py").write_bytes(text.encode())
        wanted |= {(f"{i}.py", line): is_ignored for line, is_ignored in hits.items()}
    found = ignored(document("--code", tmp_path, "--pack", LIGER)[1], LIGER)
    assert found == wanted, sorted(found.items() ^ wanted.items())[:6]
    assert 0.1 < sum(wanted.values()) / len(wanted) < 0.6


def test_a_setting_is_ignored_by_the_comment_on_its_line(tmp_path: Path) -> None:
    wanted: dict[tuple[str, int], bool] = {}
    for i in range(NUM_FILES):
        draw = random.Random(i)
        lines = draw.choices(("lr: 0.1", "# a comment", "", "name: a b", "# é \u2028"), k=draw.randint(0, 5))
        comment = draw.choice(
            ("", "# patchbench: ignore {} a reason", "# patchbench: ignore {}", "# patchbench: ignore other_pack why")
        ).format(TRAINER)
        place = draw.choice(("same", "before", "after"))
        setting = draw.choice(("gradient_accumulation_steps: 8", "gradient_accumulation_steps:   '4'", "  gradient_accumulation_steps: 2"))
        lines += [f"{setting}  {comment}"] if place == "same" else [comment, setting] if place == "before" else [setting, comment]
        end = draw.choice(("\n", "\r\n"))
        (tmp_path / f"{i}.yaml").write_bytes(end.join([*lines, ""]).encode())
        number = next(at for at, line in enumerate(end.join(lines).splitlines(), 1) if "accumulation_steps" in line)
        wanted[f"{i}.yaml", number] = place == "same" and comment.endswith("a reason")
    assert ignored(document("--code", tmp_path, "--pack", TRAINER)[1], TRAINER) == wanted

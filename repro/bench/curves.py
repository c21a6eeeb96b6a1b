"""Line drawings for the evidence, as SVG text: the same values give the same bytes."""

from __future__ import annotations

from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, GAP, LEGEND = 360, 300, 62, 46, 40, 172
AXIS, ROW = 24, 56  # what the names of the axes take below a panel, and what stands between two rows of panels

MARKS = {  # drawn from a point on
    "circle": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "square": "m-3.5 -3.5h7v7h-7z", "diamond": "m0 -5l5 5l-5 5l-5 -5z",
    "triangle": "m0 -5l5 8h-10z",
}  # fmt: skip

Point = tuple[float, float]
Tick = tuple[float, str]


class Panel(NamedTuple):
    """One pair of axes; a logarithmic one is given logarithms."""

    title: str
    x: Point  # lowest and highest
    y: Point
    ticks_x: list[Tick]
    ticks_y: list[Tick]
    lines: list[tuple[str, str, list[Point]]]  # colour, name, points
    names: tuple[str, str] = ("", "")  # of the axes
    marks: dict[str, str] = {}  # colour -> one of MARKS at each point; lines of the others are dashed
    notes: list[tuple[Point, str, str, str]] = []  # place, words, anchor, colour

    def at(self, left: float, x: float, y: float) -> Point:
        """Where a value lies in the drawing; one below the axis lies on it."""
        (x_low, x_high), (low, high) = self.x, self.y
        return left + WIDTH * (x - x_low) / (x_high - x_low), TOP + HEIGHT * (1 - (max(y, low) - low) / (high - low))

    def drawn(self, left: float, down: float = 0) -> list[str]:
        inside = self.frame(left) + [part for line in self.lines for part in self.line(left, *line)]
        inside += [text(*self.at(left, *place), *note) for place, *note in self.notes]
        return [f'<g transform="translate(0 {down})">', *inside, "</g>"] if down else inside

    def frame(self, left: float) -> list[str]:
        drawn = [f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#444444"/>']
        drawn.append(text(left + WIDTH / 2, TOP - 8, self.title))
        for value, words in self.ticks_y:
            y = self.at(left, self.x[0], value)[1]
            drawn.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#dddddd"/>' + text(left - 6, y + 4, words, "end"))
        drawn += [text(self.at(left, value, self.y[0])[0], TOP + HEIGHT + 16, words) for value, words in self.ticks_x]
        if any(self.names):
            drawn.append(text(left + WIDTH / 2, TOP + HEIGHT + 16 + AXIS, self.names[0]))
            x, y = left - LEFT + 14, TOP + HEIGHT / 2
            drawn.append(f'<g transform="rotate(-90 {x:.1f} {y:.1f})">' + text(x, y, self.names[1]) + "</g>")
        return drawn

    def line(self, left: float, colour: str, name: str, points: list[Point]) -> list[str]:
        places = [self.at(left, *point) for point in points]
        path = " ".join("{:.1f},{:.1f}".format(*place) for place in places)
        dash = ' stroke-dasharray="6 4"' if self.marks and colour not in self.marks else ""
        drawn = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"{dash}><title>{name}</title></polyline>']
        if colour in self.marks:
            shape = MARKS[self.marks[colour]]
            drawn += [f'<path d="M{x:.1f} {y:.1f}{shape}" fill="{colour}"/>' for x, y in places]
        return drawn


def text(x: float, y: float, words: str, anchor: str = "middle", fill: str = "#222222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{words}</text>'


def drawing(panels: list[Panel], legend: list[tuple[str, str]], columns: int = 0) -> str:
    """The panels, `columns` (0: all) side by side, over the meaning of each colour."""
    columns = columns or len(panels)
    row = TOP + HEIGHT + ROW if len(panels) > columns else 0
    height = (len(panels) - 1) // columns * row + TOP + HEIGHT + 48 + AXIS * any(any(panel.names) for panel in panels)
    width = max(columns * (WIDTH + LEFT) + max(columns, 2) * GAP // 2, LEFT - 40 + len(legend) * LEGEND)
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">']
    drawn.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for i, panel in enumerate(panels):
        drawn += panel.drawn(LEFT + i % columns * (WIDTH + LEFT + GAP / 2), i // columns * row)
    marks = panels[0].marks if panels else {}
    for i, (colour, meaning) in enumerate(legend):
        x, y = LEFT - 40 + i * LEGEND, height - 10
        if colour in marks:
            drawn.append(f'<path d="M{x + 5} {y - 4}{MARKS[marks[colour]]}" fill="{colour}"/>' + text(x + 16, y, meaning, "start", colour))
        else:
            drawn.append(text(x, y, f"{'- -' if marks else '&#9632;'} {meaning}", "start", colour))
    return "\n".join([*drawn, "</svg>", ""])

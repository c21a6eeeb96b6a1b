"""Line drawings for the evidence, as SVG text: the same values give the same bytes."""

from __future__ import annotations

from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP, GAP, LEGEND = 360, 300, 62, 46, 40, 172

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

    def at(self, left: float, x: float, y: float) -> Point:
        """Where a value lies in the drawing; one below the axis lies on it."""
        (x_low, x_high), (low, high) = self.x, self.y
        return left + WIDTH * (x - x_low) / (x_high - x_low), TOP + HEIGHT * (1 - (max(y, low) - low) / (high - low))

    def drawn(self, left: float) -> list[str]:
        drawn = [f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#444444"/>']
        drawn.append(text(left + WIDTH / 2, TOP - 8, self.title))
        for value, words in self.ticks_y:
            y = self.at(left, self.x[0], value)[1]
            drawn.append(f'<path d="M{left} {y:.1f}h{WIDTH}" stroke="#dddddd"/>' + text(left - 6, y + 4, words, "end"))
        drawn += [text(self.at(left, value, self.y[0])[0], TOP + HEIGHT + 16, words) for value, words in self.ticks_x]
        for colour, name, points in self.lines:
            path = " ".join("{:.1f},{:.1f}".format(*self.at(left, *point)) for point in points)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"><title>{name}</title></polyline>')
        return drawn


def text(x: float, y: float, words: str, anchor: str = "middle", fill: str = "#222222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{words}</text>'


def drawing(panels: list[Panel], legend: list[tuple[str, str]]) -> str:
    """The panels side by side over the meaning of each colour."""
    width = max(len(panels) * (WIDTH + LEFT) + GAP, LEFT - 40 + len(legend) * LEGEND)
    drawn = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 48}" font-family="sans-serif" font-size="12">']
    drawn.append(f'<rect width="{width}" height="{TOP + HEIGHT + 48}" fill="white"/>')
    for i, panel in enumerate(panels):
        drawn += panel.drawn(LEFT + i * (WIDTH + LEFT + GAP / 2))
    for i, (colour, meaning) in enumerate(legend):
        drawn.append(text(LEFT - 40 + i * LEGEND, TOP + HEIGHT + 38, f"&#9632; {meaning}", "start", colour))
    return "\n".join([*drawn, "</svg>", ""])

"""Line charts as SVG, without a library: a few charts beside each other, with axes and a legend."""

import html
import math
from dataclasses import dataclass, field

WIDTH, HEIGHT = 380, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 28, 44
# Told apart by those who do not see red and green, too.
COLOURS = ("#000000", "#56b4e9", "#0072b2", "#999999", "#e69f00", "#d55e00", "#009e73", "#cc79a7")
Point = tuple[float, float]


@dataclass
class Chart:
    title: str
    x_name: str
    y_name: str
    is_log_x: bool = False
    is_log_y: bool = False
    lines: list[tuple[str, list[Point], int]] = field(default_factory=list)

    def line(self, name: str, points: list[Point], colour: int) -> None:
        """Adds a line; of logarithmic axes, points that have none are left out."""
        kept = [(x, y) for x, y in points if (x > 0 or not self.is_log_x) and (y > 0 or not self.is_log_y)]
        if kept:
            self.lines.append((name, kept, colour))

    def draw(self, left: int, top: int) -> list[str]:
        """Returns the elements of the chart, with its corner at (left, top)."""
        points = [point for _, line, _ in self.lines for point in line]
        across = _Axis([x for x, _ in points], self.is_log_x, left + LEFT, left + WIDTH - RIGHT)
        up = _Axis([y for _, y in points], self.is_log_y, top + HEIGHT - BOTTOM, top + TOP)
        bottom, middle = top + HEIGHT - BOTTOM, top + (TOP + HEIGHT - BOTTOM) // 2
        y_name = _text(0, 0, self.y_name, anchor="middle")
        found = [
            _text(left + LEFT, top + 18, self.title, weight="bold"),
            _text((across.begin + across.end) / 2, top + HEIGHT - 8, self.x_name, anchor="middle"),
            f'<g transform="translate({left + 12},{middle}) rotate(-90)">{y_name}</g>',
        ]
        for value, label in across.ticks():
            x = across.at(value)
            found += [_rule(x, bottom, x, top + TOP), _text(x, bottom + 14, label, anchor="middle")]
        for value, label in up.ticks():
            y = up.at(value)
            found += [
                _rule(left + LEFT, y, left + WIDTH - RIGHT, y),
                _text(left + LEFT - 4, y + 4, label, anchor="end"),
            ]
        for name, line, colour in self.lines:
            path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in line)
            style = f'fill="none" stroke="{COLOURS[colour]}" stroke-width="1.6"'
            found.append(f'<polyline points="{path}" {style}><title>{html.escape(name)}</title></polyline>')
        return found


class _Axis:
    def __init__(self, values: list[float], is_log: bool, begin: float, end: float) -> None:
        self._is_log, self.begin, self.end = is_log, begin, end
        low, high = min(values), max(values)
        self.low, self.high = (low, high) if high > low else (low - 1, high + 1) if not is_log else (low / 2, high * 2)

    def at(self, value: float) -> float:
        low, high, value = (math.log(v) if self._is_log else v for v in (self.low, self.high, value))
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)

    def ticks(self) -> list[tuple[float, str]]:
        if self._is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            values = [step * 10.0**power for power in powers for step in ((1, 2, 5) if len(powers) < 4 else (1,))]
        else:
            step = 10.0 ** math.floor(math.log10((self.high - self.low) / 2))
            step *= next(s for s in (1, 2, 5, 10) if (self.high - self.low) / (s * step) <= 6)
            values = [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(value, f"{value:g}") for value in values if self.low <= value <= self.high]


def page(title: str, charts: list[Chart], columns: int = 3) -> str:
    """Returns the charts as one SVG, with a legend of all lines."""
    columns = min(columns, len(charts))
    rows = -(-len(charts) // columns)
    width, height = max(columns * WIDTH, 560), rows * HEIGHT + 60
    body = [_text(12, 20, title, weight="bold", size=14)]
    names = dict(sorted({(name, colour) for chart in charts for name, _, colour in chart.lines}, key=lambda n: n[1]))
    for number, (name, colour) in enumerate(names.items()):
        x = 12 + 90 * number
        body += [_rule(x, 38, x + 18, 38, COLOURS[colour], 2.5), _text(x + 23, 42, name)]
    for number, chart in enumerate(charts):
        body += chart.draw(number % columns * WIDTH, 56 + number // columns * HEIGHT)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return "\n".join(
        [f'{head} font-family="sans-serif">', '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>\n"]
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", size: int = 11) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{html.escape(text)}</text>'


def _rule(x: float, y: float, to_x: float, to_y: float, colour: str = "#dddddd", width: float = 1.0) -> str:
    ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width:g}"/>'

"""Draws the words of a product against the number of ranks: what the ledger counts beside the laws of the papers.

    python benchmarks/grids_plot.py          # writes docs/grids_words.svg, in some seconds

Points are words that a rank receives (mean) in a dense product and its backward product, over 2 n f, counted on ranks
that are threads; lines are the formulas of laconic.comm.grid; dashed are the papers' laws, in their leading terms.
"""

import math
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from graphs import random_graph
from laconic.attach.aggregator import Linear
from laconic.comm import Communicator, Ledger, run_ranks
from laconic.sharded.aggregator import ShardedAggregator
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun

TARGET = Path(__file__).parents[1] / "docs" / "grids_words.svg"
SQUARES, CUBES = (4, 9, 16, 25), (8, 27)
RANGE = (4, 64)
# Names, the numbers of ranks to count at, and colours that are told apart in grey too.
PRESETS = {
    "1d": (SQUARES, "#888888"),
    "2d": (SQUARES, "#1f5fa8"),
    "3d": (CUBES, "#b0442c"),
    "feature": (SQUARES, "#3a7d44"),
    "2d_summa": (SQUARES, "#8a5fb0"),
}
LAWS: dict[str, Callable[[float], float]] = {"1/sqrt(P)": lambda p: p**-0.5, "1/P^(2/3)": lambda p: p ** (-2 / 3)}
WIDTH, HEIGHT, LEFT, BOTTOM, RIGHT, TOP = 640, 420, 64, 48, 130, 24
LEAST, MOST = 0.02, 1.2


def counted(preset: str, num_ranks: int) -> float:
    """Words over n f, without the edges that 2d_summa moves."""
    num_nodes, width = 4 * num_ranks, num_ranks
    graph = random_graph(num_nodes, 0 if preset == "2d_summa" else 4, power_law=False)

    def run(transport):
        ledger = Ledger(transport.rank)
        text = f'full_graph(grid="{preset}", exchange=dense, partitioner=hash)'
        # Counted without a model.
        placed = parse_strategy(text).place(graph, Communicator(transport, ledger), ExpectedRun(torch.nn.Identity()))
        shard, aggregator = placed.shard, ShardedAggregator(placed.placement)
        aggregator.begin(is_training=True)
        rows = torch.zeros(shard.num_rows, width, requires_grad=True)
        aggregator.linear(Linear("sum"), rows)
        ledger.take(0)
        aggregator.linear(Linear("sum"), rows).sum().backward()
        return sum(row.num_bytes for row in ledger.take(0) if row.direction == "received") / 4

    return statistics.mean(run_ranks(num_ranks, run, timeout=120)) / (2 * num_nodes * width)


def formula(preset: str, num_ranks: float) -> float:
    """The same by formula, for any number of ranks, whole sides or not."""
    sides = {
        "1d": (num_ranks, 1.0, 1.0),
        "2d": (num_ranks**0.5, num_ranks**0.5, 1.0),
        "3d": (num_ranks ** (1 / 3),) * 3,
        "feature": (1.0, 1.0, num_ranks),
        "2d_summa": (num_ranks**0.5, 1.0, num_ranks**0.5),
    }
    pi, pk, pj = sides[preset]
    return (pi + pk - 2 + 2 * (1 - 1 / pj)) / num_ranks


def across(num_ranks: float) -> float:
    share = math.log(num_ranks / RANGE[0]) / math.log(RANGE[1] / RANGE[0])
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def up(words: float) -> float:
    share = math.log(words / LEAST) / math.log(MOST / LEAST)
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)


def curve(of: Callable[[float], float], style: str) -> str:
    steps = [RANGE[0] * (RANGE[1] / RANGE[0]) ** (step / 60) for step in range(61)]
    points = " ".join(f"{across(p):.1f},{up(of(p)):.1f}" for p in steps)
    return f'<polyline points="{points}" fill="none" {style}/>'


def text(x: float, y: float, words: str, *, anchor: str = "start", colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def axes() -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    lines = [f'<path d="M{LEFT} {TOP} V{bottom} H{right}" fill="none" stroke="#333"/>']
    for num_ranks in (4, 8, 16, 27, 64):
        lines.append(text(across(num_ranks), bottom + 18, str(num_ranks), anchor="middle"))
    for words in (0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        y = up(words)
        lines.append(f'<path d="M{LEFT} {y:.1f} H{right}" stroke="#e4e4e4"/>')
        lines.append(text(LEFT - 8, y + 4, f"{words:g}", anchor="end"))
    lines.append(text((LEFT + right) / 2, HEIGHT - 10, "ranks P", anchor="middle"))
    return [*lines, text(8, 14, "words that a rank receives in a product, over n f")]


def labels(wanted: list[tuple[float, str, str]]) -> list[str]:
    """Names at the ends of curves, by height, pushed apart where they would touch."""
    drawn, lowest = [], 0.0
    for y, name, colour in sorted(wanted):
        lowest = max(y + 4, lowest + 13)
        drawn.append(text(WIDTH - RIGHT + 6, lowest, name, colour=colour))
    return drawn


def main() -> None:
    drawn, names = axes(), []
    for name, law in LAWS.items():
        drawn.append(curve(law, 'stroke="#333" stroke-dasharray="5 4"'))
        names.append((up(law(RANGE[1])), f"law {name}", "#333"))
    for preset, (numbers, colour) in PRESETS.items():
        drawn.append(curve(lambda p, name=preset: formula(name, p), f'stroke="{colour}" stroke-width="1.5"'))
        names.append((up(formula(preset, RANGE[1])), preset, colour))
        for num_ranks in numbers:
            found = counted(preset, num_ranks)
            print(f"{preset:>9} of {num_ranks:2}: {found:.4f}")
            drawn.append(f'<circle cx="{across(num_ranks):.1f}" cy="{up(found):.1f}" r="4" fill="{colour}"/>')
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>'
    TARGET.write_text("\n".join([head, *drawn, *labels(names), "</svg>"]) + "\n")
    print(f"wrote {TARGET.name}")


if __name__ == "__main__":
    main()

"""Draws the pictures of docs/compression.md from what compression.py left in results/.

python benchmarks/compression_plots.py            # docs/compression_bytes.svg, docs/compression_errors.svg
python benchmarks/compression_plots.py --quick    # from a quick run, into results/
"""

import argparse
import json
from pathlib import Path

from harness import RESULTS
from svg import Chart, page

DOCS = Path(__file__).parents[1] / "docs"
ORDER = ("full", "fixed 2", "fixed 4", "fixed 8", "paper", "ours", "feedback", "adaptive")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="from a quick run, into results/")
    quick = parser.parse_args().quick
    found = json.loads((RESULTS / f"compression_curves{'.quick' if quick else ''}.json").read_text())
    folder = RESULTS if quick else DOCS
    for name, text in (("bytes", draw_bytes(found["curves"])), ("errors", draw_errors(found["traces"]))):
        path = folder / f"compression_{name}{'.quick' if quick else ''}.svg"
        path.write_text(text)
        print(path)


def draw_bytes(curves: dict[str, dict[str, list[tuple[float, float]]]]) -> str:
    """Accuracy over bytes, a chart for each graph."""
    charts = []
    for graph, methods in curves.items():
        chart = Chart(graph, "megabytes of rows and gradients, all ranks", "test accuracy, %", is_log_x=True)
        for method in sorted(methods, key=ORDER.index):
            chart.line(method, [(spent / 1e6, test) for spent, test in methods[method]], ORDER.index(method))
        charts.append(chart)
    return page("Accuracy over bytes: four ranks, random parts, one seed", charts)


def draw_errors(traces: dict[str, dict[str, list[float]]]) -> str:
    """Rate and error over epochs."""
    rate = Chart("rate", "epoch", "bytes of full communication over bytes sent", is_log_y=True)
    error = Chart("error", "epoch", "squared error of rows, relative")
    for method in sorted(traces, key=ORDER.index):
        for chart, kind in ((rate, "rate"), (error, "error")):
            chart.line(method, list(enumerate(traces[method][kind], start=1)), ORDER.index(method))
    return page("Rate and error over epochs: cora, four ranks, random parts", [rate, error])


if __name__ == "__main__":
    main()

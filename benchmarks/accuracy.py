"""Accuracy on real graphs with public splits, against the published figures: the recipes of examples/recipes/.

    LACONIC_DATA=folder python benchmarks/accuracy.py            # five seeds each
    LACONIC_DATA=folder python benchmarks/accuracy.py --quick    # one seed of the smallest

A figure is the published accuracy minus our mean, in points: at most 1. Test accuracy is that of the best validation
epoch.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import laconic
from harness import Benchmark, Target, console, make_table
from laconic.trainer.config_file import read_layer, resolve

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
# Kipf and Welling 2017 for the Planetoid splits; the baselines of Deng et al. 2024 ("Polynormer") for the others.
PUBLISHED = {"cora": 81.5, "citeseer": 70.3, "pubmed": 79.0, "amazon_photo": 92.70, "coauthor_physics": 96.18}
SEEDS = {True: 1, False: 5}


def chosen(quick: bool) -> list[str]:
    return ["cora"] if quick else list(PUBLISHED)


def targets(quick: bool) -> dict[str, Target]:
    """Quick: a single seed may be two points off the mean."""
    return {f"{name} below published": Target(1.0 if not quick else 3.0, at_most=True) for name in chosen(quick)}


def measure(name: str, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        layers = [
            read_layer(RECIPES / f"{name}.toml"),
            {"data": {"source": name}, "training": {"seed": seed}, "run": {"folder": f"{folder}/run"}},
        ]
        summary = laconic.start(resolve(layers))
    assert summary.best is not None
    return {"test": 100 * summary.best.test, "epoch": summary.best.epoch, "seconds": summary.seconds_per_epoch}


def main() -> None:
    benchmark = Benchmark.from_command_line(
        "accuracy", __doc__.splitlines()[0], {quick: targets(quick) for quick in (True, False)}
    )
    table = make_table("test accuracy, percent", "graph", "published", "mean", "deviation", "seeds", "ms per epoch")
    for name in chosen(benchmark.quick):
        runs = [
            benchmark.cell(f"{name}, seed {seed}", lambda n=name, s=seed: measure(n, s))
            for seed in range(SEEDS[benchmark.quick])
        ]
        tests = [run["test"] for run in runs]
        benchmark.figures[f"{name} below published"] = PUBLISHED[name] - statistics.mean(tests)
        table.add_row(
            name,
            f"{PUBLISHED[name]:.1f}",
            f"{statistics.mean(tests):.2f}",
            f"{statistics.stdev(tests):.2f}" if len(tests) > 1 else "-",
            " ".join(f"{test:.1f}" for test in tests),
            f"{1e3 * statistics.median(run['seconds'] for run in runs):.0f}",
        )
    console.print(table)
    benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())

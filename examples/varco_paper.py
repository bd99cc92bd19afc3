"""What VARCO's own setting (varco_paper.toml) sends in a run, against full communication. Nothing is trained.

    python examples/varco_paper.py sbm --ranks 4

The first epoch is what the rate of 128 is about; the run is not: after a fifth of it, everything goes at rate 1.
"""

import argparse
from pathlib import Path

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport, run_ranks
from laconic.datasets import load
from laconic.graph import Graph
from laconic.models import build_model
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun
from laconic.trainer.config import Config
from laconic.trainer.config_file import read_layer, resolve
from laconic.units import format_bytes

RECIPE = Path(__file__).with_suffix(".toml")


def bytes_by_epoch(config: Config, strategy: str, graph: Graph, num_ranks: int, epochs: list[int]) -> list[int]:
    """Returns the bytes of rows and gradients that all ranks send in each of `epochs`."""
    sizes = {"num_features": graph.num_features, "num_classes": graph.num_classes}
    models = [build_model(config.model, **sizes, seed=0) for _ in range(num_ranks)]

    def on_rank(transport: Transport) -> list[int]:
        communicator, run = Communicator(transport, Ledger(transport.rank)), ExpectedRun(models[transport.rank])
        worker = parse_strategy(strategy).start(graph, communicator, run)
        found = [worker.predict_traffic(epoch) for epoch in epochs]
        wanted = ("forward", "backward")
        return [
            sum(row.num_bytes for row in rows if row.phase in wanted and row.layer >= 0 and row.direction == "sent")
            for rows in found
        ]

    return [sum(ranks) for ranks in zip(*run_ranks(num_ranks, on_rank), strict=True)]


def shares(graph: Graph, num_ranks: int) -> tuple[int, int, int]:
    """Returns the bytes of the first epoch, of the run, and of the run with full communication."""
    config = resolve([read_layer(RECIPE)])
    epochs = config.training.epochs
    # From this epoch on the rate is 1.
    last = epochs // 5 + 1
    coded = bytes_by_epoch(config, config.training.strategy, graph, num_ranks, list(range(1, last + 1)))
    (full,) = bytes_by_epoch(config, "exchange(edges=destination, reach=0)", graph, num_ranks, [1])
    assert coded[-1] == full
    return coded[0], sum(coded) + (epochs - last) * full, epochs * full


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="a dataset by name, file or spec")
    parser.add_argument("--ranks", type=int, default=4)
    arguments = parser.parse_args()
    first, run, full = shares(load(arguments.graph), arguments.ranks)
    print(f"first epoch: {format_bytes(first)}, {300 * first / full:.1%} of full communication")
    print(f"whole run:   {format_bytes(run)} of {format_bytes(full)}, {run / full:.1%}")
    print("The rate of 128 is that of the first epoch, not of the run.")


if __name__ == "__main__":
    main()

"""What each host runs for compression_lab.py: trains on its chunk of a store, and says what each step took.

    laconic lab --hosts 4 --link 100mbit -- python benchmarks/compression_rank.py '["STORE", "ours", 30]'

Rank 0 prints one line: a JSON list of what each rank found.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from compression_training import DROPOUT, MODEL, new_optimizer, rows_and_gradients, start, step, strategy_of
from laconic.comm import Communicator, Ledger, run_ranks
from laconic.comm.coded_exchange import CodedRoute
from laconic.comm.gather import gather_texts
from laconic.datasets import load
from laconic.graph import Graph
from laconic.launching.join import join_ranks
from laconic.models import build_model, parse_model
from laconic.session.evaluate import Evaluation
from laconic.store import open_store
from laconic.trainer.warm_up import warm_up_model

SCORED_EVERY = 2


class Stopwatch:
    """Seconds that functions took, all together."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            since = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - since

        return timed


def train(communicator: Communicator, source: Path | Graph, method: str, epochs: int) -> dict[str, object]:
    """Returns what this rank found; all ranks call it together."""
    data = open_store(source) if isinstance(source, Path) else source
    about = data if isinstance(data, Graph) else data.manifest
    sizes = {"num_features": about.num_features, "num_classes": about.num_classes}
    model = build_model(parse_model(MODEL.format(dropout=DROPOUT)), **sizes, seed=0)
    worker = start(strategy_of(method, "random", epochs), data, model, communicator)
    evaluate, optimizer = Evaluation("accuracy", worker.shard, communicator), new_optimizer(model)
    steps, scores, num_bytes = [], [], 0
    for epoch in range(1, epochs + 1):
        communicator.ledger.take(0)
        communicator.barrier()
        since = time.perf_counter()
        step(worker, optimizer, epoch)
        steps.append(time.perf_counter() - since)
        num_bytes += rows_and_gradients(communicator.ledger, epoch)
        if epoch % SCORED_EVERY == 0:
            scores.append((epoch, evaluate(model, worker.shard)["val"]))
    return {"steps": steps, "scores": scores, "bytes": num_bytes}


def run_alone() -> None:
    """Leaves all kernels that a rank uses on disk, compiled: that is done once on a machine, and is no run's time."""
    graph = load("sbm(nodes=60, classes=3, features=8)")
    for method in ("full", "paper", "ours"):
        run_ranks(2, lambda transport, m=method: train(Communicator(transport, Ledger(transport.rank)), graph, m, 3))


def main(arguments: str) -> None:
    folder, method, epochs = json.loads(arguments)
    torch.set_num_threads(1)
    codec = Stopwatch()
    CodedRoute._pack, CodedRoute._unpack = codec.around(CodedRoute._pack), codec.around(CodedRoute._unpack)
    communicator = join_ranks()
    with communicator.transport:
        warm_up_model(parse_model(MODEL.format(dropout=DROPOUT)))
        found = train(communicator, Path(folder), method, epochs)
        findings = gather_texts(communicator, json.dumps({**found, "codec seconds": codec.seconds}))
        if communicator.rank == 0:
            print(json.dumps([json.loads(text) for text in findings]))


if __name__ == "__main__":
    main(*sys.argv[1:])

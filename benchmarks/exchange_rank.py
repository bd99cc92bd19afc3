"""What each host runs for exchange.py: trains a model on its chunk of a store, and says what that took.

    laconic lab --hosts 4 --link 1gbit -- python benchmarks/exchange_rank.py STORE sage 5

Rank 0 prints one line: a JSON list of what each rank found. Epochs over the network and epochs that move nothing take
turns, so that a noisy moment falls on both; all ranks begin each of them together.
"""

import copy
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch_geometric.nn import GCN, GraphSAGE

from laconic.comm import Communicator
from laconic.comm.gather import gather_texts
from laconic.graph import Graph
from laconic.launching.join import join_ranks
from laconic.models import parse_model
from laconic.records import LedgerRecord
from laconic.session.objective import loss_part, usual_loss
from laconic.store import open_store
from laconic.strategies import parse_strategy
from laconic.trainer.warm_up import warm_up_model

WIDTH, LAYERS = 256, 3
MODELS = {"sage": GraphSAGE, "gcn": GCN}
WAYS = ("received", "sent")


class Stub:
    """What training asks of a transport, and nothing is moved: what should come from others is 0.

    `spans` has, for each all_to_all in its order, the seconds in which the rank went on working before it waited: the
    products behind which the wire can hide. Rows that come are written here too, as whoever brings them would.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.spans: list[float] = []

    def start_all_to_all(self, out, out_sizes, data, sizes):
        out.zero_()
        return _Pending(self.spans)

    def start_all_reduce(self, tensor, op):
        return _Pending([])


class _Pending:
    def __init__(self, spans: list[float]) -> None:
        self._spans, self._since = spans, time.perf_counter()

    def wait(self) -> None:
        self._spans.append(time.perf_counter() - self._since)


class Training:
    """One rank's share of a model in training. All that is done once is done when it is made, or in the first epoch."""

    def __init__(
        self,
        communicator: Communicator,
        source: Path | Graph,
        model_name: str,
        strategy: str = "exchange",
    ) -> None:
        self.communicator, self._real = communicator, communicator.transport
        data = open_store(source) if isinstance(source, Path) else source
        about = data if isinstance(data, Graph) else data.manifest
        self.strategy = parse_strategy(strategy)
        self._model = MODELS[model_name](about.num_features, WIDTH, LAYERS, about.num_classes)
        self.strategy.expect_model(self._model)
        shard = self.strategy.place(data, communicator)
        self.strategy.check(self._model, shard)
        self.strategy.attach(self._model, shard, seed=0)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.001)
        self._epoch = 0

    def predict(self) -> list[LedgerRecord]:
        """Returns what will be sent and received, but for evaluation, which is not measured here."""
        return [row for row in self.strategy.predict_traffic(self._model) if row.phase != "evaluation"]

    def train(self) -> float:
        """Returns the seconds of one epoch."""
        return self._train_over(self._real)

    def train_alone(self, stub: Stub) -> float:
        """Returns the seconds of one epoch that moves nothing; the weights are as before, and nothing is booked."""
        before = copy.deepcopy((self._model.state_dict(), self._optimizer.state_dict()))
        seconds = self._train_over(stub)
        self._model.load_state_dict(before[0])
        self._optimizer.load_state_dict(before[1])
        self.communicator.ledger.take(0)
        return seconds

    def _train_over(self, transport) -> float:
        self._real.barrier()
        self.communicator.transport = transport
        since = time.perf_counter()
        self._epoch += 1
        shard = self.strategy.start_epoch(self._epoch)
        rows = shard.train_rows
        logits = self._model(shard.x, shard.edge_index)
        part = loss_part(usual_loss(shard.y), logits[rows], shard.y[rows])
        loss = self.strategy.share_loss(part.total, part.weight)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        seconds = time.perf_counter() - since
        self.communicator.transport = self._real
        assert bool(torch.isfinite(loss)), f"the loss became {loss.item()}"
        return seconds


def measure(communicator: Communicator, source: Path | Graph, model_name: str, num_epochs: int) -> dict[str, object]:
    """Returns what this rank found; all ranks call it together."""
    communicator.barrier()
    since = time.perf_counter()
    training = Training(communicator, source, model_name)
    setup = time.perf_counter() - since
    moved = communicator.ledger.take(0)
    predicted = training.predict()
    of_each_epoch = [row for row in predicted if row.epoch == 1]
    first = training.train()
    rows = communicator.ledger.take(0)
    moved += rows
    num_wrong = num_differences(rows, predicted)

    epochs, computes, spans = [], [], []
    for _ in range(num_epochs):
        epochs.append(training.train())
        rows = communicator.ledger.take(0)
        moved += rows
        num_wrong += num_differences(rows, of_each_epoch)
        stub = Stub(communicator.rank, communicator.num_ranks)
        computes.append(training.train_alone(stub))
        spans.append(stub.spans)
    return {
        "setup": setup + first,
        "epochs": epochs,
        "computes": computes,
        "of epoch": {way: num_bytes(rows, way) for way in WAYS},
        "of run": {way: num_bytes(moved, way) for way in WAYS},
        "exchanges": exchanges(rows, [statistics.median(each) for each in zip(*spans, strict=True)]),
        "num_wrong": num_wrong,
    }


def exchanges(rows: list[LedgerRecord], spans: list[float]) -> list[dict[str, float]]:
    """Returns for each exchange of halo rows in an epoch its bytes each way and the seconds of work beside it."""
    moves = [row for row in rows if row.operation == "all_to_all"]
    # One in each layer: forward from the first layer to the last, then backward.
    places = sorted(
        {(row.phase, row.layer) for row in moves}, key=lambda p: (0, p[1]) if p[0] == "forward" else (1, -p[1])
    )
    assert len(places) == len(spans), f"{len(spans)} all_to_alls, but {places} in the ledger"
    return [
        {
            "local": span,
            **{way: num_bytes((row for row in moves if (row.phase, row.layer) == place), way) for way in WAYS},
        }
        for place, span in zip(places, spans, strict=True)
    ]


def num_bytes(rows: Iterable[LedgerRecord], way: str) -> int:
    return sum(row.num_bytes for row in rows if row.direction == way)


def num_differences(counted: Iterable[LedgerRecord], predicted: Iterable[LedgerRecord]) -> int:
    """Returns how many rows are in one list only; of which epoch they are does not matter."""
    one, other = ({dataclasses.replace(row, epoch=0) for row in rows} for rows in (counted, predicted))
    return len(one ^ other)


def main(folder: str, model_name: str, num_epochs: str) -> None:
    communicator = join_ranks()
    with communicator.transport:
        # As a run does before its first step.
        warm_up_model(parse_model(model_name))
        findings = gather_texts(
            communicator, json.dumps(measure(communicator, Path(folder), model_name, int(num_epochs)))
        )
        if communicator.rank == 0:
            print(json.dumps([json.loads(text) for text in findings]))


if __name__ == "__main__":
    main(*sys.argv[1:])

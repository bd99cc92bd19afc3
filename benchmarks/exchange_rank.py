"""What each host runs for exchange.py: trains a model on its chunk of a store, and says what that took.

    laconic lab --hosts 4 --link 1gbit -- python benchmarks/exchange_rank.py STORE sage 5 "exchange(reach=1)"

Rank 0 prints one line: a JSON list with the findings of each rank. Epochs over the network and
epochs that move nothing take turns, so that a noisy moment falls on both; all ranks begin each
epoch together.
"""

import copy
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch_geometric.nn import GCN, GraphSAGE

from laconic.comm import Communicator, Pending
from laconic.comm.gather import gather_texts
from laconic.comm.transport import Transport
from laconic.graph import Graph
from laconic.launching.join import join_ranks
from laconic.models import parse_model
from laconic.records import LedgerRecord
from laconic.session.objective import loss_part, usual_loss
from laconic.store import open_store
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun
from laconic.trainer.warm_up import warm_up_model

STRATEGY = "exchange"
WIDTH, LAYERS = 256, 3
MODELS = {"sage": GraphSAGE, "gcn": GCN}
WAYS = ("received", "sent")


class Stub(Transport):
    """A transport that moves nothing: rows of other ranks are 0; they are written, as if they came.

    `exchanges` has a row for each all_to_all, in the order of their starts: the bytes that would
    travel each way, and the seconds at which it was started and waited for. The first start is
    second 0. Several may be under way at once. The wire can hide behind the work between a start
    and its wait.
    """

    def __init__(self, rank: int, num_ranks: int) -> None:
        super().__init__(rank, num_ranks, torch.device("cpu"))
        self.exchanges: list[dict[str, float]] = []
        self._since = 0.0

    def start_all_to_all(self, out, out_sizes, data, sizes):
        row_bytes = data.shape[1:].numel() * data.itemsize
        if not self.exchanges:
            self._since = time.perf_counter()
        exchange = {
            "received": (sum(out_sizes) - out_sizes[self.rank]) * row_bytes,
            "sent": (sum(sizes) - sizes[self.rank]) * row_bytes,
            "start": self.seconds(),
        }
        self.exchanges.append(exchange)
        out.zero_()
        return Pending(lambda: exchange.update(wait=self.seconds()))

    def start_all_reduce(self, tensor, op):
        return Pending.done(None)

    def start_all_gather(self, out, data):
        out.zero_()[self.rank] = data
        return Pending.done(None)

    def start_reduce_scatter(self, out, data, sizes):
        out.copy_(data.split_with_sizes(list(sizes))[self.rank])
        return Pending.done(None)

    def start_broadcast(self, tensor, root):
        return Pending.done(None)

    def barrier(self) -> None:
        pass

    def announce_failure(self, error) -> None:
        pass

    def close(self) -> None:
        pass

    def seconds(self) -> float:
        return time.perf_counter() - self._since


class Training:
    """One rank's share of a model in training. All that is done once is done when it is made, or in the first epoch."""

    def __init__(
        self,
        communicator: Communicator,
        source: Path | Graph,
        model_name: str,
        strategy: str = STRATEGY,
    ) -> None:
        self.communicator, self._real = communicator, communicator.transport
        data = open_store(source) if isinstance(source, Path) else source
        about = data if isinstance(data, Graph) else data.manifest
        self._model = MODELS[model_name](about.num_features, WIDTH, LAYERS, about.num_classes)
        self.placed = parse_strategy(strategy).place(data, communicator, ExpectedRun(self._model))
        self.placed.check()
        self.worker = self.placed.start(seed=0)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.001)
        self._epoch = 0

    def predict(self) -> list[LedgerRecord]:
        """Returns what will be sent and received, but for evaluation, which is not measured here."""
        return [row for row in self.worker.predict_traffic() if row.phase != "evaluation"]

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
        shard = self.worker.start_epoch(self._epoch)
        rows = shard.train_rows
        logits = self._model(shard.x, shard.edge_index)
        part = loss_part(usual_loss(shard.y), logits[rows], shard.y[rows])
        loss = self.worker.share_loss(part.total, part.weight)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        seconds = time.perf_counter() - since
        self.communicator.transport = self._real
        assert bool(torch.isfinite(loss)), f"the loss became {loss.item()}"
        return seconds


def measure(
    communicator: Communicator, source: Path | Graph, model_name: str, num_epochs: int, strategy: str = STRATEGY
) -> dict[str, object]:
    """Returns what this rank found; all ranks call it together."""
    communicator.barrier()
    since = time.perf_counter()
    training = Training(communicator, source, model_name, strategy)
    setup = time.perf_counter() - since
    moved = communicator.ledger.take(0)
    predicted = training.predict()
    of_each_epoch = [row for row in predicted if row.epoch == 1]
    first = training.train()
    rows = communicator.ledger.take(0)
    moved += rows
    num_wrong = num_differences(rows, predicted)

    epochs, computes, alone = [], [], []
    for _ in range(num_epochs):
        epochs.append(training.train())
        rows = communicator.ledger.take(0)
        moved += rows
        num_wrong += num_differences(rows, of_each_epoch)
        stub = Stub(communicator.rank, communicator.num_ranks)
        computes.append(training.train_alone(stub))
        alone.append(stub.exchanges)
    return {
        "setup": setup + first,
        "epochs": epochs,
        "computes": computes,
        "of epoch": {way: num_bytes(rows, way) for way in WAYS},
        "of run": {way: num_bytes(moved, way) for way in WAYS},
        "exchanges": exchanges(rows, alone),
        "num_wrong": num_wrong,
        "choice": str(getattr(training.worker, "choice", "")),
    }


def exchanges(rows: Iterable[LedgerRecord], alone: Sequence[Sequence[dict[str, float]]]) -> list[dict[str, float]]:
    """Returns each all_to_all of an epoch, in the order of their starts.

    Of each: its bytes each way, and the seconds of its start and its wait.

    Args:
        rows: the ledger of an epoch over the network; it has the bytes that the stubs were asked for.
        alone: what the stub of each epoch noted; the result has the median of each number.
    """
    of_epoch = [
        {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
        for turns in zip(*alone, strict=True)
    ]
    booked = [row for row in rows if row.operation == "all_to_all"]
    for way in WAYS:
        asked = sum(each[way] for each in of_epoch)
        assert asked == num_bytes(booked, way), f"{asked} bytes {way} with a stub, {num_bytes(booked, way)} booked"
    return of_epoch


def num_bytes(rows: Iterable[LedgerRecord], way: str) -> int:
    return sum(row.num_bytes for row in rows if row.direction == way)


def num_differences(counted: Iterable[LedgerRecord], predicted: Iterable[LedgerRecord]) -> int:
    """Returns how many rows are in one list only; of which epoch they are does not matter."""
    one, other = ({dataclasses.replace(row, epoch=0) for row in rows} for rows in (counted, predicted))
    return len(one ^ other)


def main(folder: str, model_name: str, num_epochs: str, strategy: str = STRATEGY) -> None:
    communicator = join_ranks()
    with communicator.transport:
        # As a run does before its first step.
        warm_up_model(parse_model(model_name))
        found = measure(communicator, Path(folder), model_name, int(num_epochs), strategy)
        findings = gather_texts(communicator, json.dumps(found))
        if communicator.rank == 0:
            print(json.dumps([json.loads(text) for text in findings]))


if __name__ == "__main__":
    main(*sys.argv[1:])

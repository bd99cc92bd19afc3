"""What each host runs for gradient_only.py: trains the same model in several ways, in turns, and says what that took.

PLAN is the JSON of a `Plan`. Rank 0 prints one line: a JSON list of what each rank found. All ranks begin a turn
together. A turn of `gradient_only` is the refresh with which a super-epoch begins and NUM_STEPS of its steps, one of
another strategy is an epoch. A plan without links is for memory: two epochs of the only way, and the peak of what they
add to the process.
"""

import copy
import dataclasses
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch

from exchange_rank import WAYS, Stub, num_bytes
from harness import status_bytes
from laconic.cached.interval_worker import IntervalWorker
from laconic.comm import Communicator
from laconic.comm.frames import HEADER_BYTES
from laconic.comm.gather import gather_texts
from laconic.launching.join import join_ranks
from laconic.models import build_model, parse_model
from laconic.papers.grappa.worker import GrappaWorker
from laconic.records import LedgerRecord
from laconic.session.objective import loss_part, usual_loss
from laconic.store import open_store
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun
from laconic.trainer.warm_up import warm_up_model

# Of a turn: the first after a refresh and three that are like all others; fewer where only the switch is of interest.
NUM_STEPS, NUM_STEPS_MOVING = 4, 3
LINK_MARK = "link: "


@dataclass(frozen=True)
class Way:
    """A way to train: a strategy on the chunks of a store."""

    strategy: str
    folder: str


@dataclass(frozen=True)
class OnLink:
    """What is measured while links have one rate.

    Args:
        link: the rate, as the lab writes it.
        ways: names of the ways that have a turn.
    """

    link: str
    ways: list[str]


@dataclass(frozen=True)
class Plan:
    """What all ranks do.

    Args:
        model: spec of a sample model.
        ways: by name.
        links: one after the other; what is needed once is fetched over the first.
        folder: a file with the name of a link appears in it when links have been changed to it.
    """

    model: str
    ways: dict[str, Way]
    links: list[OnLink]
    folder: str = ""

    @staticmethod
    def from_text(text: str) -> "Plan":
        given = json.loads(text)
        ways = {name: Way(**way) for name, way in given["ways"].items()}
        return Plan(given["model"], ways, [OnLink(**each) for each in given["links"]], given["folder"])

    def to_text(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class Contender:
    """One rank's share of a model in training, in one way; one step has been taken when it is made."""

    def __init__(self, communicator: Communicator, way: Way, plan: Plan) -> None:
        self._communicator, self._real = communicator, communicator.transport
        store = open_store(Path(way.folder))
        about = store.manifest
        self.model = build_model(
            parse_model(plan.model), num_features=about.num_features, num_classes=about.num_classes, seed=0
        )
        self.worker = parse_strategy(way.strategy).start(store, communicator, ExpectedRun(self.model))
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=0.001)
        self._epoch = 0
        is_alone = isinstance(self.worker, IntervalWorker)
        self._super_epochs = self.worker.intervals if is_alone else None
        self.super_epoch = self.worker.intervals.every if is_alone else 1
        self.is_gradual = is_alone and self.worker.intervals.is_gradual
        self.moves_chunks = isinstance(self.worker, GrappaWorker)
        self.step()

    def step(self) -> tuple[float, float]:
        """Takes a step; returns the seconds before it, in which a super-epoch may begin, and its own."""
        since = time.perf_counter()
        self._epoch += 1
        shard = self.worker.start_epoch(self._epoch)
        begun = time.perf_counter()
        rows = shard.train_rows
        logits = self.model(shard.x, shard.edge_index)
        shares = self.worker.row_factors
        factors = None if shares is None else shares * self.worker.num_train
        part = loss_part(usual_loss(shard.y), logits[rows], shard.y[rows], factors)
        loss = self.worker.share_loss(part.total, part.weight)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        assert bool(torch.isfinite(loss)), f"the loss became {loss.item()}"
        return begun - since, time.perf_counter() - begun

    def turn(self) -> dict[str, object]:
        """Returns the seconds until the first step of a turn could begin, and those of each of its steps."""
        self._to_next_super_epoch()
        self._real.barrier()
        num_steps = 1 if self.super_epoch == 1 else NUM_STEPS_MOVING if self.moves_chunks else NUM_STEPS
        parts = [self.step() for _ in range(num_steps)]
        return {"switch": parts[0][0], "steps": [step for _, step in parts]}

    def compute(self) -> float:
        """Returns the seconds of an epoch, its share of a refresh included, in which nothing is moved.

        With super-epochs: the first step after a refresh, and one more that stands for all the others. Nothing is
        booked; the weights are as before. The historical neighbours are not, until the next super-epoch.
        """
        before = copy.deepcopy((self.model.state_dict(), self._optimizer.state_dict()))
        self._to_next_super_epoch()
        self._real.barrier()
        self._communicator.transport = Stub(self._communicator.rank, self._communicator.num_ranks)
        # Zeros that nobody sent have no checksum.
        with mock.patch("laconic.comm.coded_exchange.take_header", lambda frame, *_: frame[HEADER_BYTES:]):
            switch, first = self.step()
        second = self.step()[1] if self.super_epoch > 1 else 0.0
        self._communicator.transport = self._real
        self.model.load_state_dict(before[0])
        self._optimizer.load_state_dict(before[1])
        self._communicator.ledger.take(0)
        return (switch + first + (self.super_epoch - 1) * second) / self.super_epoch

    def _to_next_super_epoch(self) -> None:
        if self._super_epochs is not None:
            # Not one of the first ones, which are shorter.
            next_one = self._super_epochs.number(max(self._epoch, 10 * self.super_epoch)) + 1
            self._epoch = self._super_epochs.first_epoch(next_one) - 1


def measure_memory(communicator: Communicator, plan: Plan) -> dict[str, object]:
    """Returns by how many bytes this process grew at its peak, from an empty rank to the second epoch."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status_bytes("VmRSS")
    [way] = plan.ways.values()
    Contender(communicator, way, plan).step()
    return {"peak bytes": status_bytes("VmHWM") - before}


def measure(communicator: Communicator, plan: Plan) -> dict[str, object]:
    """Returns what this rank found, by link and way; all ranks call it together."""
    contenders = {name: Contender(communicator, way, plan) for name, way in plan.ways.items()}
    moved = communicator.ledger.take(0)
    computes = {
        name: float("nan") if contender.moves_chunks else contender.compute() for name, contender in contenders.items()
    }
    found, received = {}, {}
    for on_link in plan.links:
        if found:
            change_link(communicator, on_link.link, Path(plan.folder))
        of_ways = {}
        for name in on_link.ways:
            seconds = contenders[name].turn()
            rows = communicator.ledger.take(0)
            of_ways[name] = {**seconds, **bytes_of(rows)}
            moved += rows
        found[on_link.link] = of_ways
        received[on_link.link], moved = num_bytes(moved, "received"), []
    constants = {
        name: {
            "compute": computes[name],
            "super-epoch": contender.super_epoch,
            "is gradual": contender.is_gradual,
            "model bytes": sum(parameter.nbytes for parameter in contender.model.parameters()),
        }
        for name, contender in contenders.items()
    }
    return {"on links": found, "received": received, "of ways": constants}


def change_link(communicator: Communicator, link: str, folder: Path) -> None:
    """Waits until whoever started the hosts has given their links another rate."""
    communicator.barrier()
    if communicator.rank == 0:
        print(f"{LINK_MARK}{link}", flush=True)
        until = time.monotonic() + 60
        while not (folder / link).exists():
            assert time.monotonic() < until, f"links were not changed to {link} within a minute"
            time.sleep(0.05)
    communicator.barrier()


def bytes_of(rows: list[LedgerRecord]) -> dict[str, object]:
    """Returns what a turn moved: for the switch, in steps, and which part of that are gradients."""

    def both_ways(chosen: Iterable[LedgerRecord]) -> dict[str, int]:
        chosen = list(chosen)
        return {way: num_bytes(chosen, way) for way in WAYS}

    return {
        "bytes of switch": both_ways(row for row in rows if row.phase == "repartition"),
        "bytes of steps": both_ways(row for row in rows if row.phase != "repartition"),
        "bytes of gradients": both_ways(row for row in rows if row.phase == "gradients"),
    }


def main(text: str) -> None:
    plan = Plan.from_text(text)
    communicator = join_ranks()
    with communicator.transport:
        # As a run does before its first step.
        warm_up_model(parse_model(plan.model))
        communicator.ledger.take(0)
        measurement = measure if plan.links else measure_memory
        findings = gather_texts(communicator, json.dumps(measurement(communicator, plan)))
        if communicator.rank == 0:
            print(json.dumps([json.loads(text) for text in findings]))


if __name__ == "__main__":
    main(*sys.argv[1:])

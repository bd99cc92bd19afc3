"""What each host runs for gradient_only.py: trains the same model in several ways, in turns, and says what that took.

    laconic lab --hosts 4 --link 100mbit -- python benchmarks/gradient_only_rank.py PLAN

PLAN is the JSON of a `Plan`. Rank 0 prints one line: a JSON list of what each rank found. A turn of a contender is as
many epochs as its strategy repeats itself in: a whole super-epoch, or some plain epochs. All ranks begin it together.
A plan without turns is for memory: two epochs of the only way, and the peak of what they add to the process.
"""

import copy
import dataclasses
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from exchange_rank import WAYS, Stub, num_bytes
from harness import status_bytes
from laconic.comm import Communicator
from laconic.comm.gather import gather_texts
from laconic.launch.join import join_ranks
from laconic.models import build_model, parse_model
from laconic.records import LedgerRecord
from laconic.store import open_store
from laconic.strategies import parse_strategy
from laconic.strategies.gradient_only import GradientOnly
from laconic.trainer.objective import objective
from laconic.trainer.warm_up import warm_up_model


@dataclass(frozen=True)
class Way:
    """A way to train: a strategy on the chunks of a store."""

    strategy: str
    folder: str


@dataclass(frozen=True)
class Plan:
    """What all ranks do.

    Args:
        model: spec of a sample model.
        ways: by name.
        num_turns: how often each has its turn.
        num_epochs: of a turn of a strategy without super-epochs.
        steps_first: whether a whole step goes before the first turn. Otherwise only what is needed once is fetched
            before it, which over a slow link is most of what the first step costs more than others.
    """

    model: str
    ways: dict[str, Way]
    num_turns: int
    num_epochs: int
    steps_first: bool

    @staticmethod
    def from_text(text: str) -> "Plan":
        given = json.loads(text)
        return Plan(**{**given, "ways": {name: Way(**way) for name, way in given["ways"].items()}})

    def to_text(self) -> str:
        return json.dumps(dataclasses.asdict(self))


class Contender:
    """One rank's share of a model in training, in one way."""

    def __init__(self, communicator: Communicator, way: Way, plan: Plan) -> None:
        self._communicator, self._real = communicator, communicator.transport
        store = open_store(Path(way.folder))
        about = store.manifest
        self.strategy = parse_strategy(way.strategy)
        shard = self.strategy.place(store, communicator)
        self.model = build_model(
            parse_model(plan.model), num_features=about.num_features, num_classes=about.num_classes, seed=0
        )
        self.strategy.check(self.model, shard)
        self._attachment = self.strategy.attach(self.model, shard, seed=0)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=0.001)
        self._epoch = 0
        is_alone = isinstance(self.strategy, GradientOnly)
        self._every = self.strategy.repartition_every if is_alone else 1
        self.num_epochs = self._every if is_alone else plan.num_epochs
        self._remembers = is_alone and self.strategy.remember
        self.moves_chunks = is_alone and not self.strategy.remember
        if plan.steps_first or self.moves_chunks:
            self._take_first_step()
        else:
            self._fetch_inputs()

    def _fetch_inputs(self) -> None:
        """Lets the first layer get the features of neighbours, which it keeps from then on."""
        shard = self._attachment.shard
        first = self.model.convs[0]
        with torch.no_grad():
            if not self._remembers:
                first(shard.x, shard.edge_index)
                return
            aggregator = self.strategy._grounds.aggregator
            with self._attachment.using(shard, aggregator), aggregator.refreshing():
                aggregator.begin(is_training=False)
                first(shard.x, shard.edge_index)

    def _take_first_step(self) -> None:
        self._take_step()
        # The next super-epoch comes next.
        self._epoch = -(-self._epoch // self._every) * self._every

    def step_again(self) -> None:
        """Takes one step, which may begin a super-epoch."""
        self._take_step()

    def turn(self) -> tuple[float, float, list[float]]:
        """Returns the seconds of a turn, those until its first step could begin, and those of each of its steps."""
        self._real.barrier()
        since = time.perf_counter()
        parts = [self._take_step() for _ in range(self.num_epochs)]
        return time.perf_counter() - since, sum(switch for switch, _ in parts), [step for _, step in parts]

    def compute(self) -> float:
        """Returns the seconds of an epoch, its share of a refresh included, in which nothing is moved.

        The first step after a refresh, and one more that stands for all the others. Nothing is booked; the weights are
        as before, but what is remembered is not: this comes last.
        """
        before = copy.deepcopy((self.model.state_dict(), self._optimizer.state_dict()))
        self._real.barrier()
        self._communicator.transport = Stub(self._communicator.rank, self._communicator.num_ranks)
        switch, first = self._take_step()
        _, second = self._take_step()
        self._communicator.transport = self._real
        self.model.load_state_dict(before[0])
        self._optimizer.load_state_dict(before[1])
        self._communicator.ledger.take(0)
        if self._every == 1:
            return (first + second) / 2
        return (switch + first + (self._every - 1) * second) / self._every

    def _take_step(self) -> tuple[float, float]:
        """Returns the seconds before a step, in which a super-epoch may begin, and those of the step."""
        since = time.perf_counter()
        self._epoch += 1
        shard = self.strategy.start_epoch(self._epoch)
        begun = time.perf_counter()
        rows = shard.train_rows
        logits = self.model(shard.x, shard.edge_index)
        share = objective(logits[rows], shard.y[rows], self.strategy.num_train, self.strategy.row_factors)
        loss = self.strategy.share_loss(share)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        assert bool(torch.isfinite(loss)), f"the loss became {loss.item()}"
        return begun - since, time.perf_counter() - begun


def measure_memory(communicator: Communicator, plan: Plan) -> dict[str, object]:
    """Returns by how many bytes this process grew at its peak, from an empty rank to the second epoch."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status_bytes("VmRSS")
    [way] = plan.ways.values()
    Contender(communicator, way, plan).step_again()
    return {"peak bytes": status_bytes("VmHWM") - before}


def measure(communicator: Communicator, plan: Plan) -> dict[str, object]:
    """Returns what this rank found, by way; all ranks call it together."""
    contenders = {name: Contender(communicator, way, plan) for name, way in plan.ways.items()}
    moved = communicator.ledger.take(0)
    names = list(contenders)
    turns: dict[str, list[tuple[float, float, list[float]]]] = {name: [] for name in names}
    rows: dict[str, list[LedgerRecord]] = {}
    for number in range(plan.num_turns):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            turns[name].append(contenders[name].turn())
            rows[name] = communicator.ledger.take(0)
            moved += rows[name]
    found: dict[str, object] = {
        name: {
            "num_epochs": contender.num_epochs,
            "seconds": [seconds for seconds, _, _ in turns[name]],
            "switches": [switch for _, switch, _ in turns[name]],
            "steps": [step for _, _, steps in turns[name] for step in steps],
            "compute": float("nan") if contender.moves_chunks else contender.compute(),
            "of turn": {way: num_bytes(rows[name], way) for way in WAYS},
            "received by phase": _by_phase(rows[name]),
            "num_parameter_bytes": sum(parameter.nbytes for parameter in contender.model.parameters()),
        }
        for name, contender in contenders.items()
    }
    return {"of ways": found, "sent in run": num_bytes(moved, "sent")}


def _by_phase(rows: list[LedgerRecord]) -> dict[str, int]:
    received: Counter[str] = Counter()
    for row in rows:
        if row.direction == "received":
            received[row.phase] += row.num_bytes
    return dict(received)


def main(text: str) -> None:
    plan = Plan.from_text(text)
    communicator = join_ranks()
    with communicator.transport:
        # As a run does before its first step.
        warm_up_model(parse_model(plan.model))
        communicator.ledger.take(0)
        measurement = measure if plan.num_turns else measure_memory
        findings = gather_texts(communicator, json.dumps(measurement(communicator, plan)))
        if communicator.rank == 0:
            print(json.dumps([json.loads(text) for text in findings]))


if __name__ == "__main__":
    main(*sys.argv[1:])

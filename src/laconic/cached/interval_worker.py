"""IntervalWorker: a worker whose training steps exchange gradients and nothing else.

Epochs lie in intervals. When one begins, ranks get something new of each other; within it they train apart, on what
they have, and sum their gradients in every step. Evaluation is exact.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from laconic.attach.aggregator import Aggregator
from laconic.cached.intervals import Intervals
from laconic.gradients.reductions import GradientReduction
from laconic.gradients.running_statistics import combine_buffers, give_back_buffers
from laconic.gradients.shared import share_gradients
from laconic.graph import Shard
from laconic.sharded.placement import Placement
from laconic.sharded.trace import Traces
from laconic.sharded.worker import PlacedWorker

# Names of what a checkpoint holds; "grounds": of the interval under way.
_INTERVAL, _GRADIENTS, _STATISTICS = "grounds", "gradients", "buffers"


class IntervalWorker(PlacedWorker, ABC):
    """Ranks train on their own between the beginnings of intervals, and share gradients.

    Args:
        placement: what this rank owns.
        exact: the aggregations of an evaluation.
        reduction: how gradients travel.
        intervals: when intervals begin.
    """

    def __init__(
        self,
        traces: Traces,
        placement: Placement,
        exact: Aggregator,
        seed: int,
        *,
        reduction: GradientReduction,
        intervals: Intervals,
    ) -> None:
        model, communicator = traces.model, placement.communicator
        gradients = share_gradients(model, communicator, reduction=reduction, loss_phase="gradients")
        super().__init__(traces, placement, gradients, placement.shard, exact, seed)
        self.attachment.call_before_evaluation(lambda: self._combine_statistics("repartition"))
        self.intervals = intervals
        self._reduction = reduction
        # Of the interval under way; -1 before the first epoch.
        self._interval = -1
        # Running statistics that each rank had, while those of all ranks are in the model.
        self._own_statistics: Tensor | None = None

    @abstractmethod
    def _enter(self, interval: int, epoch: int) -> None:
        """Moves on to an interval (the first is 0), at its epoch `epoch`; all ranks call it together."""

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        interval = self.intervals.number(epoch)
        if interval != self._interval:
            self._enter(interval, epoch)
            self._interval = interval
        return super().start_epoch(epoch, step)

    @contextmanager
    def settled(self) -> Iterator[None]:
        self._own_statistics = self._combine_statistics("checkpoint")
        try:
            yield
        finally:
            # A checkpoint leaves no trace in the run that goes on: one that is taken up from it does the same.
            give_back_buffers(self.model, self._own_statistics, self.placement.communicator.rank)
            self._own_statistics = None

    def _combine_statistics(self, phase: str) -> Tensor:
        """Makes running statistics of norms equal on all ranks; returns those that each had before."""
        communicator = self.placement.communicator
        with communicator.ledger.phase(phase):
            return combine_buffers(self.model, self.placement.shard.num_rows, communicator)

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes the run up anew: what an interval begins with follows from its number."""
        self._interval = -1

    def tensors(self) -> dict[str, Tensor]:
        parts = {_INTERVAL: self._interval_tensors(), _GRADIENTS: self._gradients.reducer.state()}
        if self._own_statistics is not None and len(self._own_statistics):
            parts[_STATISTICS] = {"of_ranks": self._own_statistics}
        return {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        parts: dict[str, dict[str, Tensor]] = {_INTERVAL: {}, _GRADIENTS: {}, _STATISTICS: {}}
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value
        self._load_interval_tensors(parts[_INTERVAL])
        self._gradients.reducer.load_state(parts[_GRADIENTS])
        of_ranks, communicator = parts[_STATISTICS].get("of_ranks"), self.placement.communicator
        # On another number of ranks nobody takes up where one of them was: what the model has is of all of them.
        if of_ranks is not None and len(of_ranks) == communicator.num_ranks:
            give_back_buffers(self.model, of_ranks, communicator.rank)

    def _interval_tensors(self) -> dict[str, Tensor]:
        """Returns what a checkpoint has to hold of the interval under way, the same on all ranks."""
        return {}

    def _load_interval_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Takes back what `_interval_tensors` gave."""

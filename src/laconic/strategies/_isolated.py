"""IsolatedStrategy: what strategies have in common whose training steps exchange gradients and nothing else.

Epochs lie in intervals. When one begins, ranks get something new of each other; within it they train apart, on what
they have, and sum their gradients in every step.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from laconic.attach import Attachment, attach
from laconic.attach.aggregator import Aggregator
from laconic.cached.intervals import Intervals
from laconic.comm.communicator import Communicator
from laconic.gradients.first_weights import copy_from_first
from laconic.gradients.reductions import parse_reduction
from laconic.gradients.running_statistics import combine_buffers, give_back_buffers
from laconic.gradients.shared import SharedGradients
from laconic.graph import Graph, Shard
from laconic.records import LedgerRecord
from laconic.sharded.block import BlockMap
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.placement import Placement, place
from laconic.sharded.rehearsal import rehearse as rehearse_exchange
from laconic.store import Store
from laconic.strategies._chunks import Chunks, chunks_of
from laconic.strategies.base import Strategy

# Names of what a checkpoint holds; "grounds": of the interval under way.
_INTERVAL, _GRADIENTS, _STATISTICS = "grounds", "gradients", "buffers"


@dataclass(eq=False)
class IsolatedStrategy(Strategy):
    """Ranks train on their own between the beginnings of intervals, and share gradients."""

    _chunks: Chunks | None = field(default=None, init=False, repr=False)
    _chunk_map: ChunkMap | None = field(default=None, init=False, repr=False)
    _placement: Placement | None = field(default=None, init=False, repr=False)
    _attachment: Attachment | None = field(default=None, init=False, repr=False)
    _gradients: SharedGradients | None = field(default=None, init=False, repr=False)
    _num_epochs: int | None = field(default=None, init=False, repr=False)
    _interval: int | None = field(default=None, init=False, repr=False)
    _own_statistics: Tensor | None = field(default=None, init=False, repr=False)

    @property
    def placement(self) -> Placement:
        """What this rank owns."""
        assert self._placement is not None, "place comes first"
        return self._placement

    @property
    @abstractmethod
    def intervals(self) -> Intervals:
        """When intervals begin."""

    @abstractmethod
    def _enter(self, interval: int, epoch: int) -> None:
        """Moves on to an interval (the first is 0), at its epoch `epoch`; all ranks call it together."""

    def _place(
        self, source: Graph | Store, communicator: Communicator, partitioner: str, num_chunks: int | None = None
    ) -> None:
        self._chunks = chunks_of(source, communicator, partitioner=partitioner, num_chunks=num_chunks)
        self._chunk_map = ChunkMap.even(self._chunks.num_nodes, communicator.num_ranks)
        self._placement = place(self._chunks.open, BlockMap.one_axis(self._chunk_map), communicator)

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        self._placement = replace(self.placement, shard=replace(self.placement.shard, x=x))
        return self._placement.shard

    @property
    def num_train(self) -> int:
        return self.placement.num_train

    def expect_epochs(self, num_epochs: int) -> None:
        self._num_epochs = num_epochs

    def _attach(self, model: nn.Module, shard: Shard, seed: int, gradients: str, exact: Aggregator) -> Attachment:
        """Hangs the exact aggregations of an evaluation, and the sum of gradients, on `model`."""
        placement, communicator = self.placement, self.placement.communicator
        copy_from_first(model, communicator)
        reduction = parse_reduction(gradients)
        self._gradients = SharedGradients(model, communicator, reduction=reduction, loss_phase="gradients")
        self._attachment = attach(model, shard, seed=seed, aggregator=exact)
        self._attachment.call_before_evaluation(lambda: self._combine_statistics("repartition"))
        if placement.communicator.num_ranks > 1:
            self._attachment.call_before_gradients(self._gradients.shared_pass.check)
        return self._attachment

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        assert self._attachment is not None, "attach comes before the first epoch"
        interval = self.intervals.number(epoch)
        if interval != self._interval:
            self._enter(interval, epoch)
            self._interval = interval
        self._attachment.start_epoch(epoch, step)
        return self._attachment.shard

    def share_loss(self, total: Tensor, weight: float | None = None) -> Tensor:
        assert self._gradients is not None, "attach comes before the first loss"
        return self._gradients.share(total, weight)

    @contextmanager
    def settled(self) -> Iterator[None]:
        self._own_statistics = self._combine_statistics("checkpoint")
        try:
            yield
        finally:
            # A checkpoint leaves no trace in the run that goes on: one that is taken up from it does the same.
            give_back_buffers(self._model, self._own_statistics, self.placement.communicator.rank)
            self._own_statistics = None

    def _combine_statistics(self, phase: str) -> Tensor:
        """Makes running statistics of norms equal on all ranks; returns those that each had before."""
        communicator = self.placement.communicator
        with communicator.ledger.phase(phase):
            return combine_buffers(self._model, self.placement.shard.num_rows, communicator)

    @property
    def _model(self) -> nn.Module:
        assert self._attachment is not None, "attach comes first"
        return self._attachment.model

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes the run up anew: what an interval begins with follows from its number."""
        self._interval = None

    def tensors(self) -> dict[str, Tensor]:
        assert self._gradients is not None, "attach comes before a checkpoint"
        parts = {_INTERVAL: self._interval_tensors(), _GRADIENTS: self._gradients.reducer.state()}
        if self._own_statistics is not None and len(self._own_statistics):
            parts[_STATISTICS] = {"of_ranks": self._own_statistics}
        return {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        assert self._gradients is not None, "attach comes before a checkpoint is loaded"
        parts: dict[str, dict[str, Tensor]] = {_INTERVAL: {}, _GRADIENTS: {}, _STATISTICS: {}}
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value
        self._load_interval_tensors(parts[_INTERVAL])
        self._gradients.reducer.load_state(parts[_GRADIENTS])
        of_ranks, communicator = parts[_STATISTICS].get("of_ranks"), self.placement.communicator
        # On another number of ranks nobody takes up where one of them was: what the model has is of all of them.
        if of_ranks is not None and len(of_ranks) == communicator.num_ranks:
            give_back_buffers(self._model, of_ranks, communicator.rank)

    def _interval_tensors(self) -> dict[str, Tensor]:
        """Returns what a checkpoint has to hold of the interval under way, the same on all ranks."""
        return {}

    def _load_interval_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Takes back what `_interval_tensors` gave."""

    def exact_traffic(self, model: nn.Module) -> list[LedgerRecord]:
        return rehearse_exchange(model, self.placement)

"""SharedAggregator: what the aggregations of all ranks that share a graph have in common."""

from abc import ABC
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from laconic.attach.aggregator import Aggregator
from laconic.attach.remembered import RememberedInputs
from laconic.comm.communicator import Communicator
from laconic.graph import Shard
from laconic.sharded.position import Position
from laconic.sharded.total import sum_over_ranks


class Placed(Protocol):
    """What one rank holds of a graph, and what it knows of the whole."""

    @property
    def shard(self) -> Shard: ...

    @property
    def communicator(self) -> Communicator: ...

    @property
    def largest_num_rows(self) -> int: ...

    @property
    def num_nodes(self) -> int: ...

    @property
    def num_train(self) -> int: ...


class Told(Protocol):
    """Who is told when a forward pass begins."""

    def begin(self, *, is_training: bool) -> None: ...


class SharedAggregator(Aggregator, ABC):
    """Knows where in a step it is, and what is kept of the own features; every method is called by all ranks together.

    Args:
        placed: what this rank holds.
        coder: is told when a pass begins.
    """

    def __init__(self, placed: Placed, coder: Told | None) -> None:
        super().__init__(placed.shard)
        self._placed = placed
        self._told = coder
        self._remembered = RememberedInputs(placed.shard.x, num_rows=placed.largest_num_rows)
        self._position = Position("evaluation", -1)

    @property
    def num_nodes(self) -> int:
        return self._placed.num_nodes

    @property
    def is_shared(self) -> bool:
        return True

    def begin(self, *, is_training: bool) -> None:
        self._position = Position("forward" if is_training else "evaluation", -1)
        if self._told is not None:
            self._told.begin(is_training=is_training)

    def enter_layer(self, number: int) -> None:
        self._position = Position(self._position.phase, number)

    def is_remembered(self, x: Tensor) -> bool:
        return self._remembered.covers(x)

    def total(self, x: Tensor) -> Tensor:
        return sum_over_ranks(self._placed.communicator, x, self._position)

    def _setup(self) -> AbstractContextManager[None]:
        """Inside, traffic is counted as what comes once."""
        return Position("setup", self._position.layer).booked(self._placed.communicator.ledger)

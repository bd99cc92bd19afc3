"""What a strategy is: how ranks learn one model together. This docstring is the contract.

A strategy is frozen settings, a dataclass whose spec is a text such as "single". The state of a run is elsewhere. A
session (`session/session.py`) goes from one to the other, on every rank:

    placed = strategy.place(graph, communicator, ExpectedRun(model))   # what this rank holds of the graph
    placed.check()                      # refuses, before anything is built, what it cannot train
    worker = placed.start(seed=0)       # the model is attached, and trained by `laconic.gradients.worker`

What is promised, and tested for every member (tests/contracts/test_strategy_contract.py): predicted traffic equals what
was counted; an exact strategy gives the gradients of `single`; all ranks end with equal weights; a run that is
continued from `state()` equals one that never stopped; what cannot be done is refused, naming a strategy that can.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, final

from torch import Tensor, nn

from laconic.allocation import keep_freed_memory
from laconic.comm.communicator import Communicator
from laconic.gradients.worker import Worker
from laconic.graph import Graph, Shard
from laconic.store import Store


@final
@dataclass(frozen=True, eq=False)
class ExpectedRun:
    """What is known of a run before the graph is divided.

    Args:
        model: what will be trained; it is left as it is until a worker starts.
        num_epochs: how many epochs there will be; None where that is not known.
        takes_batches: whether steps will be on mini-batches.
    """

    model: nn.Module
    num_epochs: int | None = None
    takes_batches: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Placed(ABC):
    """The part of the graph that one rank holds, for the run that it was placed for."""

    run: ExpectedRun

    @property
    @abstractmethod
    def shard(self) -> Shard:
        """The rows and edges of this rank."""

    @property
    @abstractmethod
    def num_train(self) -> int:
        """Training nodes of the whole graph, over which the loss is a mean."""

    @abstractmethod
    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Self:
        """Returns the part with other features: prepared ones.

        Args:
            prepare: does to any rows what was done to these.
        """

    @abstractmethod
    def check(self) -> None:
        """Raises UnsupportedModelError, saying why and what to do instead, unless the model can be trained on it."""

    def start(self, seed: int) -> Worker:
        """Hangs the kernels, and any exchange between ranks, on the model, which stays the same object."""
        keep_freed_memory()
        worker = self._start(seed)
        if self.run.num_epochs is not None:
            worker.expect_epochs(self.run.num_epochs)
        return worker

    @abstractmethod
    def _start(self, seed: int) -> Worker: ...


class Strategy(ABC):
    """How ranks learn one model together: settings alone."""

    def check_ranks(self, num_ranks: int) -> None:  # noqa: B027
        """Raises ConfigError unless it can train on so many ranks; asked before they are started."""

    @property
    def draws_batches(self) -> bool:
        """Whether ranks may train on mini-batches, each drawn on its own."""
        return False

    @property
    def changes_graph(self) -> bool:
        """Whether the graph may change during a run."""
        return False

    @abstractmethod
    def place(self, source: Graph | Store, communicator: Communicator, run: ExpectedRun) -> Placed:
        """Returns the part of the graph that this rank holds; all ranks call it together."""

    def start(self, source: Graph | Store, communicator: Communicator, run: ExpectedRun, *, seed: int = 0) -> Worker:
        """Places the graph, checks the model and starts its worker; all ranks call it together."""
        placed = self.place(source, communicator, run)
        placed.check()
        return placed.start(seed)

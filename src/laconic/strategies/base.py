"""What a strategy is: how ranks learn one model together. This docstring is the contract.

A member is a dataclass whose init fields are its settings, so that its spec is a text such as "single". A session
(`session/session.py`) uses it in this order, on every rank:

    shard = strategy.place(graph, communicator)     # what this rank holds of the graph
    strategy.check(model, shard)                    # refuses, before anything is built, what it cannot train
    attachment = strategy.attach(model, shard, seed=0)
    for epoch in ...:
        shard = strategy.start_epoch(epoch)         # the rows to train on: it may change between epochs
        loss = strategy.share_loss(total, weight)   # the loss of all ranks
        loss.backward()                             # then p.grad is its gradient, the same on every rank

What is promised, and tested for every member (tests/contracts/test_strategy_contract.py): predicted traffic equals what
was counted; an exact strategy gives the gradients of `single`; all ranks end with equal weights; a run that is
continued from `state()` equals one that never stopped; what cannot be done is refused, naming a strategy that can.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn

from laconic.attach import Attachment
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError
from laconic.graph import Graph, GraphChange, Shard
from laconic.records import CoverageRecord, LedgerRecord
from laconic.store import Store


class Strategy(ABC):
    """How ranks learn one model together."""

    def expect_model(self, model: nn.Module) -> None:  # noqa: B027
        """Told before `place` what will be trained, where that is known."""

    def check_ranks(self, num_ranks: int) -> None:  # noqa: B027
        """Raises ConfigError unless it can train on so many ranks; asked before they are started."""

    @abstractmethod
    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        """Returns the part of the graph that this rank holds; all ranks call it together."""

    @abstractmethod
    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        """Returns the shard with other features: prepared ones, before a model is attached.

        Args:
            prepare: does to any rows what was done to these.
        """

    def expect_epochs(self, num_epochs: int) -> None:  # noqa: B027
        """Told before the first epoch how many there will be, where that is known."""

    def expect_batches(self) -> None:  # noqa: B027
        """Told before `attach` that steps will be on mini-batches."""

    @property
    @abstractmethod
    def num_train(self) -> int:
        """Training nodes of the whole graph, over which the loss is a mean."""

    @abstractmethod
    def check(self, model: nn.Module, shard: Shard) -> None:
        """Raises UnsupportedModelError, saying why and what to do instead, unless it can train `model` on `shard`."""

    @abstractmethod
    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        """Hangs the kernels, and any exchange between ranks, on `model`, which stays the same object."""

    @abstractmethod
    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        """Moves on to `epoch` (the first is 1), to its step number `step`, and returns the shard to train on."""

    @property
    def row_factors(self) -> Tensor | None:
        """Share of each training row in the mean over all of them in this epoch; None: one over `num_train` for all."""
        return None

    @abstractmethod
    def share_loss(self, total: Tensor, weight: float | None = None) -> Tensor:
        """Returns the sum of the ranks' totals over the sum of their weights; all ranks call together.

        When `backward` of it returns, every `p.grad` of the model is the gradient of the global loss.

        Args:
            total: the sum of the losses of this rank's rows.
            weight: what these rows weigh; None: the ranks' totals are added up and not divided.
        """

    @property
    def draws_batches(self) -> bool:
        """Whether ranks may train on mini-batches, each drawn on its own."""
        return False

    @property
    def drawn_from(self) -> Shard:
        """What mini-batches of this epoch are drawn from, the rank's own rows first."""
        raise NotImplementedError

    def using_batch(self, batch: Shard) -> AbstractContextManager[Shard]:
        """Inside, the attached model works on `batch`, a mini-batch."""
        raise NotImplementedError

    def change(self, change: GraphChange) -> Shard:
        """Changes the graph between two epochs, and returns the shard to go on with; all ranks call it together."""
        name = type(self).__module__.rpartition(".")[2]
        raise ConfigError(
            f"The strategy {name} cannot change its graph during a run. Use the strategy exchange, which "
            f"can, on any number of ranks, one included; or write a new store and start again."
        )

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint has to hold beside model and optimizer, as values that JSON can write."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Inside, the model is the same on all ranks, to be saved; all ranks call it together."""
        yield

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that a checkpoint has to hold beside model and optimizer, the same on all ranks."""
        return {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027
        """Takes back what `tensors` gave."""

    def take_records(self) -> list[CoverageRecord]:
        """Returns what is to be told of the epochs since the last call, beside their losses and scores."""
        return []

    @abstractmethod
    def predict_traffic(self, model: nn.Module, epoch: int = 1) -> list[LedgerRecord]:
        """Returns this rank's traffic exactly as its ledger will count it.

        Rows of epoch 0 are what comes once, rows of `epoch` what that epoch costs with one step and one evaluation, the
        adding up of scores excepted. Where no schedule says otherwise, every epoch costs the same.
        """

    @abstractmethod
    def exact_traffic(self, model: nn.Module) -> list[LedgerRecord]:
        """Returns what `predict_traffic` would if all rows were exchanged as they are, between the same parts."""

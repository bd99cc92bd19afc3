"""What a strategy is: how ranks learn one model together. This docstring is the contract.

A member is a dataclass whose init fields are its settings, so that its spec is a text such as "single". The trainer
uses it in this order, on every rank:

    strategy.check(model, shard)                    # refuses, before anything is built, what it cannot train
    attachment = strategy.attach(model, shard, seed=0)
    for epoch in ...:
        shard = strategy.start_epoch(epoch)         # the rows to train on: it may change between epochs
        loss.backward()
        strategy.combine_gradients(model)           # then p.grad is the same on every rank

What is promised, and tested for every member (tests/contracts/test_strategy_contract.py): predicted traffic equals what
was counted; an exact strategy gives the gradients of `single`; all ranks end with equal weights; a run that is
continued from `state()` equals one that never stopped; what cannot be done is refused, naming a strategy that can.
"""

from abc import ABC, abstractmethod
from typing import Any

from torch import nn

from laconic.attach import Attachment
from laconic.graph import Shard
from laconic.records import TrafficRecord


class Strategy(ABC):
    """How ranks learn one model together."""

    @abstractmethod
    def check(self, model: nn.Module, shard: Shard) -> None:
        """Raises UnsupportedModelError, saying why and what to do instead, unless it can train `model` on `shard`."""

    @abstractmethod
    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        """Hangs the kernels, and any exchange between ranks, on `model`, which stays the same object."""

    @abstractmethod
    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        """Moves on to `epoch` (the first is 1), to its step number `step`, and returns the shard to train on."""

    @abstractmethod
    def combine_gradients(self, model: nn.Module) -> None:
        """Makes every `p.grad` the gradient of the global loss, after `backward` and before the optimizer's step."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint has to hold beside model and optimizer, as values that JSON can write."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""

    @abstractmethod
    def predict_traffic(self, model: nn.Module, shard: Shard) -> list[TrafficRecord]:
        """Returns the traffic of one epoch, evaluation included, exactly as the ledger will count it."""

"""The reference: one process that holds the whole graph. Every other strategy is compared with it."""

from dataclasses import dataclass, field
from typing import Any, final

from torch import nn

from laconic.attach import Attachment, attach
from laconic.graph import Shard
from laconic.records import TrafficRecord
from laconic.strategies._checks import check_plain_model
from laconic.strategies.base import Strategy


@final
@dataclass(eq=False)
class Single(Strategy):
    """Trains in one process, exactly. Traffic: none."""

    _attachment: Attachment | None = field(default=None, init=False, repr=False)

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        self._attachment = attach(model, shard, seed=seed)
        return self._attachment

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        assert self._attachment is not None, "attach comes before the first epoch"
        self._attachment.start_epoch(epoch, step)
        return self._attachment.shard

    def combine_gradients(self, model: nn.Module) -> None:
        """Does nothing: the gradient of the one rank is the gradient."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Does nothing: between two epochs there is nothing to remember."""

    def predict_traffic(self, model: nn.Module, shard: Shard) -> list[TrafficRecord]:
        return []

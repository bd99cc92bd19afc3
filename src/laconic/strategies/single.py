"""The reference: one process that holds the whole graph. Every other strategy is compared with it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, final

from torch import Tensor, nn

from laconic.attach import Attachment, attach
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError
from laconic.gradients.shared import check_weight
from laconic.graph import Graph, Shard
from laconic.records import LedgerRecord
from laconic.store import Store
from laconic.strategies._checks import check_plain_model
from laconic.strategies.base import Strategy


@final
@dataclass(eq=False)
class Single(Strategy):
    """Trains in one process, exactly. Traffic: none."""

    _shard: Shard | None = field(default=None, init=False, repr=False)
    _attachment: Attachment | None = field(default=None, init=False, repr=False)

    def check_ranks(self, num_ranks: int) -> None:
        if num_ranks > 1:
            raise ConfigError(
                f"The strategy single is for one rank, but there are {num_ranks}. Use the strategy exchange, "
                f"which gives the same result on several."
            )

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        self.check_ranks(communicator.num_ranks)
        self._shard = Shard.whole(source if isinstance(source, Graph) else source.to_graph())
        return self._shard

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        assert self._shard is not None, "place comes first"
        self._shard = replace(self._shard, x=x)
        return self._shard

    @property
    def num_train(self) -> int:
        assert self._shard is not None, "place comes first"
        return len(self._shard.train_rows)

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        self._attachment = attach(model, shard, seed=seed)
        return self._attachment

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        assert self._attachment is not None, "attach comes before the first epoch"
        self._attachment.start_epoch(epoch, step)
        return self._attachment.shard

    def share_loss(self, total: Tensor, weight: float | None = None) -> Tensor:
        """Returns the loss: that of the one rank is all there is."""
        if weight is None:
            return total
        check_weight(weight)
        return total / weight

    def using_batch(self, batch: Shard) -> AbstractContextManager[Shard]:
        assert self._attachment is not None, "attach comes before the first batch"
        return self._attachment.using(batch)

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Does nothing: between two epochs there is nothing to remember."""

    def predict_traffic(self, model: nn.Module, epoch: int = 1) -> list[LedgerRecord]:
        return []

    def exact_traffic(self, model: nn.Module) -> list[LedgerRecord]:
        return []

"""The reference: one process that holds the whole graph. Every other strategy is compared with it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from laconic.attach import attach
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError
from laconic.gradients.worker import Worker
from laconic.graph import Graph, Shard
from laconic.store import Store
from laconic.strategies._checks import check_plain_model
from laconic.strategies.base import ExpectedRun, Placed, Strategy


@final
@dataclass(frozen=True)
class Single(Strategy):
    """Trains in one process, exactly. Traffic: none."""

    def check_ranks(self, num_ranks: int) -> None:
        if num_ranks > 1:
            raise ConfigError(
                f"The strategy single is for one rank, but there are {num_ranks}. Use the strategy exchange, "
                f"which gives the same result on several."
            )

    def place(self, source: Graph | Store, communicator: Communicator, run: ExpectedRun) -> "PlacedWhole":
        self.check_ranks(communicator.num_ranks)
        return PlacedWhole(run=run, whole=Shard.whole(source if isinstance(source, Graph) else source.to_graph()))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedWhole(Placed):
    """All of the graph."""

    whole: Shard

    @property
    def shard(self) -> Shard:
        return self.whole

    @property
    def num_train(self) -> int:
        return len(self.whole.train_rows)

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> "PlacedWhole":
        return replace(self, whole=replace(self.whole, x=x))

    def check(self) -> None:
        check_plain_model(self.run.model, self.whole)

    def _start(self, seed: int) -> Worker:
        return Worker(attach(self.run.model, self.whole, seed=seed))

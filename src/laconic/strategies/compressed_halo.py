"""Boundary rows are exchanged in every layer, through a codec; with `identity`, exactly (VARCO, arXiv 2406.17611)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

from torch import Tensor, nn

from laconic.attach import Attachment, attach
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError
from laconic.graph import Graph, Shard
from laconic.halo.aggregator import HaloAggregator
from laconic.halo.first_weights import copy_from_first
from laconic.halo.gradients import SharedGradients
from laconic.halo.placement import ChunkMap, Placement, place
from laconic.halo.rehearsal import rehearse
from laconic.halo.trial import check_layers, check_whole
from laconic.records import LedgerRecord
from laconic.store import Store
from laconic.strategies._checks import check_plain_model
from laconic.strategies._chunks import chunks_of
from laconic.strategies.base import Strategy


@final
@dataclass(eq=False)
class CompressedHalo(Strategy):
    """Each rank owns a part of the nodes and gets what it lacks of its neighbours' rows, layer by layer.

    Args:
        codec: how rows are written for the way; identity, the only one so far, changes nothing.
        partitioner: cuts a graph that does not come from a store.
    """

    codec: str = "identity"
    partitioner: str = "metis"
    _placement: Placement | None = field(default=None, init=False, repr=False)
    _attachment: Attachment | None = field(default=None, init=False, repr=False)
    _gradients: SharedGradients | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.codec != "identity":
            raise ConfigError(f"Unknown codec {self.codec!r}. There is: identity.")

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        chunks = chunks_of(source, communicator, partitioner=self.partitioner)
        chunk_map = ChunkMap.even(chunks.num_nodes, communicator.num_ranks)
        own = [chunks.open(number) for number in chunk_map.chunks_of(communicator.rank)]
        self._placement = place(own, chunk_map, communicator)
        return self._placement.shard

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        placement = self._placed
        self._placement = replace(placement, shard=replace(placement.shard, x=x))
        return self._placement.shard

    @property
    def num_train(self) -> int:
        return self._placed.num_train

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)
        check_layers(model)
        check_whole(model, shard)

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        placement = self._placed
        assert shard is placement.shard, "the shard comes from `place`"
        copy_from_first(model, placement.communicator)
        if self._gradients is not None and placement.communicator.num_ranks > 1:
            raise ConfigError(
                "This session has a model already, and ranks share the gradients of one. Put both into one module."
            )
        self._gradients = SharedGradients(model, placement.communicator)
        self._attachment = attach(model, shard, seed=seed, aggregator=HaloAggregator(placement))
        return self._attachment

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        assert self._attachment is not None, "attach comes before the first epoch"
        self._attachment.start_epoch(epoch, step)
        return self._attachment.shard

    def share_loss(self, loss: Tensor) -> Tensor:
        assert self._gradients is not None, "attach comes before the first loss"
        return self._gradients.share(loss)

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Does nothing: between two epochs there is nothing to remember."""

    def predict_traffic(self, model: nn.Module, epoch: int = 1) -> list[LedgerRecord]:
        return rehearse(model, self._placed, epoch)

    @property
    def _placed(self) -> Placement:
        assert self._placement is not None, "place comes first"
        return self._placement

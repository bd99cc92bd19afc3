"""Boundary rows are exchanged in every layer, through a codec; with `identity`, exactly (VARCO, arXiv 2406.17611)."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from laconic.attach import Attachment, attach
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError
from laconic.graph import Graph, Shard
from laconic.halo.aggregator import HaloAggregator
from laconic.halo.gradients import SharedGradients
from laconic.halo.placement import ChunkMap, Placement, place
from laconic.halo.rehearsal import rehearse
from laconic.halo.trial import check_layers, check_whole
from laconic.launch.agreement import check_agreement
from laconic.partitioners import PARTITIONERS, assign_parts
from laconic.records import LedgerRecord
from laconic.specs import parse_spec
from laconic.store import Store, chunk_in_memory
from laconic.strategies._checks import check_plain_model
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
        num_ranks = communicator.num_ranks
        if isinstance(source, Store):
            _check_fits(source, num_ranks)
            chunk_map = ChunkMap.even([chunk.num_nodes for chunk in source.manifest.chunks], num_ranks)
            chunks = [source.chunk(number) for number in chunk_map.chunks_of(communicator.rank)]
        else:
            # Every rank cuts alike: partitioners are deterministic; another version of METIS might not.
            partitioner = parse_spec(self.partitioner, PARTITIONERS, family="partitioner")
            parts = assign_parts(source, partitioner, num_ranks, seed=0)
            check_agreement(communicator, {"partition": hashlib.sha256(parts.tobytes()).hexdigest()})
            chunk_map = ChunkMap.even(np.bincount(parts, minlength=num_ranks).tolist(), num_ranks)
            chunks = [chunk_in_memory(source, parts, num_ranks, communicator.rank)]
        self._placement = place(chunks, chunk_map, communicator)
        return self._placement.shard

    def with_features(self, x: Tensor) -> Shard:
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
        _copy_from_first(model, placement.communicator)
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

    def predict_traffic(self, model: nn.Module) -> list[LedgerRecord]:
        return rehearse(model, self._placed)

    @property
    def _placed(self) -> Placement:
        assert self._placement is not None, "place comes first"
        return self._placement


def _check_fits(store: Store, num_ranks: int) -> None:
    if num_ranks > store.num_chunks:
        raise ConfigError(
            f"{store.folder} has {store.num_chunks} chunks, and each of the {num_ranks} ranks needs one at least. Run "
            f"on 1 to {store.num_chunks} ranks, or write it again with `laconic partition ... --parts {num_ranks}`."
        )


def _copy_from_first(model: nn.Module, communicator: Communicator) -> None:
    """Gives all ranks the parameters and buffers of rank 0."""
    with communicator.ledger.phase("setup"), torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.copy_(communicator.broadcast(tensor, root=0))

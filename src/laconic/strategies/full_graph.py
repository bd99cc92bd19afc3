"""Exact full-graph training on a grid of ranks: 1D, 1.5D, 2D, 3D and feature-parallel (CAGNET, arXiv 2005.03300)."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

from torch import Tensor, nn

from laconic.attach import Attachment, attach
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid, parse_grid
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.graph import Graph, Shard
from laconic.grids.aggregator import GridAggregator
from laconic.grids.block import BlockMap
from laconic.grids.check import check_convolutions, check_symmetric_convolutions
from laconic.grids.placement import GridPlacement, place
from laconic.grids.plan import Plan, make_plan, memory_limit
from laconic.grids.rehearsal import rehearse
from laconic.grids.survey import survey
from laconic.halo.first_weights import copy_from_first
from laconic.halo.gradients import SharedGradients
from laconic.halo.placement import ChunkMap
from laconic.halo.trial import check_layers, check_whole
from laconic.launch.environment import rank_environment
from laconic.records import LedgerRecord
from laconic.specs import unknown_name
from laconic.store import Store
from laconic.strategies._checks import check_only_model, check_plain_model
from laconic.strategies._chunks import Chunks, chunks_of
from laconic.strategies.base import Strategy

logger = logging.getLogger(__name__)

EXCHANGES = ("sparse", "dense")


@final
@dataclass(eq=False)
class FullGraph(Strategy):
    """Each rank owns rows and a block of the edges; rows are gathered along one axis, sums scattered along another.

    Args:
        grid: auto (by a plan of all factorisations), 1d, 1d_columns, 1.5d(c=2), 2d, 3d, feature,
            grid(pi=, pk=, pj=), or as in the papers 1.5d_replicated(c=2) and 2d_summa; see laconic.comm.grid.
        exchange: sparse sends only rows that some edge needs, dense all rows of a block.
        partitioner: cuts a graph that does not come from a store; auto: metis for sparse exchange, random for dense.
        link_mbit: speed of a rank's link, by which a plan weighs what travels against what is computed. Told, not
            measured: a run that is resumed has to choose the same grid.
    """

    grid: str = "auto"
    exchange: str = "sparse"
    partitioner: str = "auto"
    link_mbit: float = 1000.0
    plan: Plan | None = field(default=None, init=False, repr=False)
    """What was weighed where the grid was chosen here."""
    _placement: GridPlacement | None = field(default=None, init=False, repr=False)
    _attachment: Attachment | None = field(default=None, init=False, repr=False)
    _gradients: SharedGradients | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.exchange not in EXCHANGES:
            raise ConfigError(unknown_name(self.exchange, EXCHANGES, family="exchange"))
        if self.grid != "auto":
            parse_grid(self.grid)
        if not 0 < self.link_mbit < math.inf:
            raise ConfigError(f"full_graph: link_mbit should be above 0, such as 1000; got {self.link_mbit}.")

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        if self.grid != "auto":
            # Before anything is said, so that all ranks refuse alike.
            parse_grid(self.grid).of(communicator.num_ranks)
        # Blocks of shuffled nodes have alike many edges; rows that nobody needs are most where neighbours share a part.
        by_default = "metis" if self.is_sparse else "random"
        partitioner = by_default if self.partitioner == "auto" else self.partitioner
        chunks = chunks_of(source, communicator, partitioner=partitioner)
        chunk_map = ChunkMap.even(chunks.num_nodes, communicator.num_ranks)
        grid = self._choose_grid(source, chunks, chunk_map, communicator)
        layout = None if self.grid == "auto" or communicator.num_ranks == 1 else parse_grid(self.grid)
        self._placement = place(
            chunks.open,
            BlockMap(grid, chunk_map, "blocks" if layout is None else layout.arrangement),
            communicator,
            is_sparse=self.is_sparse,
            is_for_symmetric=layout is not None and layout.is_for_symmetric,
        )
        return self._placement.shard

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        placement = self.placement
        self._placement = replace(placement, shard=replace(placement.shard, x=x))
        return self._placement.shard

    @property
    def num_train(self) -> int:
        return self.placement.num_train

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)
        try:
            check_convolutions(model, self.placement.grid)
            if self.grid != "auto" and parse_grid(self.grid).is_for_symmetric:
                check_symmetric_convolutions(model)
            check_layers(model)
            check_whole(model, shard)
            if self.placement.grid.pj > 1:
                # Layers too narrow to be sliced show when they are tried.
                rehearse(model, self.placement)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{error}{self._advice()}") from error

    def _advice(self) -> str:
        """Returns what to write instead of auto, which chose without knowing the model; nothing where it did not."""
        if self.plan is None or self.placement.grid.pj == 1:
            return ""
        unsliced = next(candidate.grid for candidate in self.plan.candidates if candidate.grid.pj == 1)
        return f' The grid was chosen by auto; the next best with whole features is grid="{unsliced}".'

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        placement = self.placement
        assert shard is placement.shard, "the shard comes from `place`"
        copy_from_first(model, placement.communicator)
        check_only_model(self._gradients is None, placement.communicator)
        self._gradients = SharedGradients(model, placement.communicator)
        self._attachment = attach(model, shard, seed=seed, aggregator=GridAggregator(placement))
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
        return rehearse(model, self.placement, epoch)

    def _choose_grid(
        self, source: Graph | Store, chunks: Chunks, chunk_map: ChunkMap, communicator: Communicator
    ) -> Grid:
        if self.grid != "auto" or communicator.num_ranks == 1:
            return Grid() if self.grid == "auto" else parse_grid(self.grid).of(communicator.num_ranks)
        about = source if isinstance(source, Graph) else source.manifest
        dtype = source.x.dtype if isinstance(source, Graph) else source.features_dtype
        environment = rank_environment()
        self.plan = make_plan(
            survey(chunks.open, chunk_map, communicator, is_sparse=self.is_sparse),
            width=about.num_features,
            # Hidden layers are known later: `check` refuses those that cannot be sliced.
            narrowest=min(about.num_features, about.num_classes),
            itemsize=dtype.itemsize,
            link_mbit=self.link_mbit,
            limit_bytes=memory_limit(communicator, 1 if environment is None else environment.num_local_ranks),
        )
        if communicator.rank == 0:
            logger.info("Grids of %s ranks, for the busiest one:\n%s", communicator.num_ranks, self.plan.table())
        return self.plan.best.grid

    @property
    def is_sparse(self) -> bool:
        """Whether only rows that some edge needs are exchanged."""
        return self.exchange == "sparse"

    @property
    def placement(self) -> GridPlacement:
        """What this rank holds."""
        assert self._placement is not None, "place comes first"
        return self._placement

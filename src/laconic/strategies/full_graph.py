"""Exact full-graph training on a grid of ranks: 1D, 1.5D, 2D, 3D and feature-parallel (CAGNET, arXiv 2005.03300)."""

import logging
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np
import torch
from torch import nn

from laconic.attach.fixed_operators import why_not_recompute
from laconic.comm.codecs import parse_codec
from laconic.comm.codecs.identity import Identity
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid, Layout, parse_grid
from laconic.errors import ConfigError, StoreError, UnsupportedModelError
from laconic.graph import Graph, Shard
from laconic.launching.agreement import check_agreement, check_all_ready
from laconic.launching.environment import rank_environment
from laconic.papers.cagnet.layouts import block_map_of
from laconic.papers.cagnet.symmetry import check_symmetric_convolutions
from laconic.sharded.axis import AxisExchange
from laconic.sharded.block import BlockMap
from laconic.sharded.check import check_convolutions
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.cut import Cut
from laconic.sharded.edge_placement import EdgePlace, with_edges_at
from laconic.sharded.placement import place
from laconic.sharded.plan import Plan, make_plan, memory_limit
from laconic.sharded.rehearsal import rehearse
from laconic.sharded.survey import survey
from laconic.sharded.trial import check_shared
from laconic.sharded.workload import Workload
from laconic.specs import unknown_name
from laconic.store import Store
from laconic.strategies._checks import (
    check_codable,
    check_coded_edges,
    check_edges,
    check_link,
    check_plain_model,
    check_schedule,
)
from laconic.strategies._chunks import Chunks, chunks_of
from laconic.strategies._placed import PlacedStrategy

logger = logging.getLogger(__name__)

EXCHANGES = ("sparse", "dense")


@final
@dataclass(eq=False)
class FullGraph(PlacedStrategy):
    """Each rank owns rows and a block of the edges; rows are gathered along one axis, sums scattered along another.

    Args:
        grid: auto (by a plan of all factorisations), 1d, 1d_columns, 1.5d(c=2), 2d, 3d, feature,
            grid(pi=, pk=, pj=), or as in the papers 1.5d_replicated(c=2) and 2d_summa; see laconic.comm.grid.
        exchange: sparse sends only rows that some edge needs, dense all rows of a block.
        partitioner: cuts a graph that does not come from a store; auto: metis for sparse exchange, random for dense.
        edges: where edges between two ranks lie on a grid of one axis: destination (as in 1d), source (as in
            1d_columns), cover (the fewest rows and sums), or auto: cover where the grid is auto's own choice, and as
            the grid's name says otherwise.
        codec, schedule: how rows and sums are written for the way in training, and at which rate, as in
            the strategy exchange; identity changes nothing. For grids with whole rows (pj = 1).
        staged: rows travel block by block, the product of one running while the next is under way, so that two blocks
            of other ranks are in memory at most, not all; more messages one after the other.
        link_mbit: speed of a rank's link, by which a plan weighs what travels against what is computed. Told, not
            measured: a run that is resumed has to choose the same grid.
    """

    grid: str = "auto"
    exchange: str = "sparse"
    partitioner: str = "auto"
    edges: Literal["auto", "destination", "source", "cover"] = "auto"
    codec: str = "identity"
    schedule: str = "constant"
    staged: bool = False
    link_mbit: float = 1000.0
    plan: Plan | None = field(default=None, init=False, repr=False)
    """What was weighed where the grid was chosen here."""
    _model: nn.Module | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.exchange not in EXCHANGES:
            raise ConfigError(unknown_name(self.exchange, EXCHANGES, family="exchange"))
        if self.grid != "auto":
            parse_grid(self.grid)
        check_schedule(self.codec, self.schedule)
        check_edges(self.edges)
        if self.staged and not isinstance(parse_codec(self.codec), Identity):
            raise ConfigError(
                f"full_graph: staged rows go as they are, and codec {self.codec} writes a product's rows at once. "
                f"Leave out one of the two."
            )
        check_link(self.link_mbit, "full_graph")

    @property
    def coding(self) -> tuple[str, str]:
        return self.codec, self.schedule

    def expect_model(self, model: nn.Module) -> None:
        self._model = model

    def check_ranks(self, num_ranks: int) -> None:
        if self.grid != "auto":
            layout = parse_grid(self.grid)
            self._check_layout(layout, layout.of(num_ranks))

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        # Before anything is said, so that all ranks refuse alike.
        self.check_ranks(communicator.num_ranks)
        layout = None if self.grid == "auto" else parse_grid(self.grid)
        # Blocks of shuffled nodes have alike many edges; rows that nobody needs are most where neighbours share a part.
        by_default = "metis" if self.is_sparse else "random"
        partitioner = by_default if self.partitioner == "auto" else self.partitioner
        chunks = chunks_of(source, communicator, partitioner=partitioner)
        chunk_map = ChunkMap.even(chunks.num_nodes, communicator.num_ranks)
        if layout is None or communicator.num_ranks == 1:
            block_map = BlockMap(self._choose_grid(source, chunks, chunk_map, communicator), chunk_map)
        else:
            block_map = block_map_of(layout, communicator.num_ranks, chunk_map)
        check_all_ready(communicator, _lacking(chunks, block_map, communicator.rank))
        self._placement = place(
            chunks.open,
            block_map,
            communicator,
            is_sparse=self.is_sparse,
            is_staged=self.staged,
        )
        self._place_edges(layout, communicator)
        if self._is_coded:
            check_agreement(communicator, {"codec": self.codec, "schedule": self.schedule})
            self._cut = Cut.of(self._placement)
        return self._placement.shard

    def _place_edges(self, layout: Layout | None, communicator: Communicator) -> None:
        """Moves edges between two ranks to one of the two, where the grid has one axis; all ranks call it together."""
        placement = self.placement
        is_one_axis = placement.grid.pi == communicator.num_ranks and isinstance(placement.sources, AxisExchange)
        is_one_axis = is_one_axis and self.is_sparse and not self.staged
        if self.edges != "auto" and not is_one_axis:
            raise ConfigError(
                f"edges={self.edges} is for grids of one axis with sparse exchange and without stages, and this is "
                f"{placement.grid}, whose blocks say where edges lie. Use grid='1d', or leave edges out."
            )
        edges: EdgePlace = "cover" if self.edges == "auto" else self.edges
        has_whole_rows = self._model is not None and why_not_recompute(self._model) is not None
        if self.edges == "auto" and (layout is not None or (self._is_coded and has_whole_rows)):
            return
        if communicator.num_ranks > 1 and is_one_axis:
            check_agreement(communicator, {"edges": self.edges})
            self._placement = with_edges_at(placement, edges)

    def _check_layout(self, layout: Layout, grid: Grid) -> None:
        """Raises ConfigError where a codec, or stages, are asked for in a layout that has none."""
        is_coded = not isinstance(parse_codec(self.codec), Identity) and grid.num_ranks > 1
        if is_coded and (layout.is_as_published or grid.pj > 1):
            raise ConfigError(
                f"codec {self.codec} is for whole rows and blocks that stay where they are, a grid with pj=1; "
                f'grid="{self.grid}" has pj={grid.pj}. Use 1d, 1d_columns, 1.5d or 2d, or the codec identity.'
            )
        if self.staged and layout.is_as_published:
            raise ConfigError(
                f'grid="{self.grid}" moves whole blocks, as in its paper, and has no stages. Use 1d, 1.5d, 2d or '
                f"another grid, or leave staged out."
            )

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)
        check_codable(self.codec, shard, self.placement.communicator)
        try:
            check_convolutions(model, self.placement.grid)
            check_symmetric_convolutions(model, self.grid)
            check_shared(model, shard)
            check_coded_edges(model, self.placement, self.codec)
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

    def _choose_grid(
        self, source: Graph | Store, chunks: Chunks, chunk_map: ChunkMap, communicator: Communicator
    ) -> Grid:
        if communicator.num_ranks == 1:
            return Grid()
        environment = rank_environment()
        dtype = source.x.dtype if isinstance(source, Graph) else source.features_dtype
        one_axis = BlockMap(Grid(pi=communicator.num_ranks), chunk_map)
        check_all_ready(communicator, _lacking(chunks, one_axis, communicator.rank))
        self.plan = make_plan(
            survey(chunks.open, chunk_map, communicator, is_sparse=self.is_sparse),
            workload=self._workload(source, dtype, int(np.diff(chunk_map.rank_starts).max())),
            itemsize=dtype.itemsize,
            link_mbit=self.link_mbit,
            limit_bytes=memory_limit(communicator, 1 if environment is None else environment.num_local_ranks),
            most_slices=None if isinstance(parse_codec(self.codec), Identity) else 1,
            is_staged=self.staged,
        )
        if communicator.rank == 0:
            logger.info("Grids of %s ranks, for the busiest one:\n%s", communicator.num_ranks, self.plan.table())
        return self.plan.best.grid

    def _workload(self, source: Graph | Store, dtype: torch.dtype, largest_num_rows: int) -> Workload:
        about = source if isinstance(source, Graph) else source.manifest
        if self._model is None:
            # Layers are known later: `check` refuses those that cannot be sliced.
            return Workload.of_features(about.num_features, about.num_classes)
        is_weighted = source.edge_weight is not None if isinstance(source, Graph) else source.chunk(0).has_weights
        return Workload.of_model(
            self._model, about.num_features, dtype, is_weighted=is_weighted, largest_num_rows=largest_num_rows
        )

    @property
    def _is_coded(self) -> bool:
        return not isinstance(parse_codec(self.codec), Identity) and self.placement.communicator.num_ranks > 1

    @property
    def is_sparse(self) -> bool:
        """Whether only rows that some edge needs are exchanged."""
        return self.exchange == "sparse"


def _lacking(chunks: Chunks, block_map: BlockMap, rank: int) -> str | None:
    """Returns what a rank lacks of what it has to read, in a sentence."""
    try:
        for number, names in block_map.arrays_of(rank).items():
            chunks.check(number, names)
    except StoreError as error:
        return str(error)
    return None

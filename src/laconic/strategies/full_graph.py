"""Exact full-graph training on a grid of ranks: 1D, 1.5D, 2D, 3D and feature-parallel (CAGNET, arXiv 2005.03300)."""

import logging
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from torch import nn

from laconic.attach.fixed_operators import why_not_recompute
from laconic.comm.codecs import is_coded, parse_codec
from laconic.comm.codecs.identity import Identity
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid, Layout, parse_grid
from laconic.errors import ConfigError, StoreError
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement, check_all_ready
from laconic.launching.environment import rank_environment
from laconic.papers.cagnet.layouts import block_map_of
from laconic.papers.cagnet.symmetry import check_symmetric_convolutions
from laconic.sharded.axis import AxisExchange
from laconic.sharded.block import BlockMap
from laconic.sharded.check import check_convolutions
from laconic.sharded.coding import Coding
from laconic.sharded.edge_placement import EdgePlace, with_edges_at
from laconic.sharded.placement import Placement, place
from laconic.sharded.plan import Plan, make_plan, memory_limit
from laconic.sharded.survey import survey
from laconic.sharded.worker import ShardedWorker
from laconic.sharded.workload import Workload
from laconic.specs import unknown_name
from laconic.store import Store
from laconic.strategies._checks import check_coded, check_edges, check_link, check_schedule
from laconic.strategies._chunks import Chunks, chunks_of
from laconic.strategies._placed import PlacedRows
from laconic.strategies.base import ExpectedRun, Strategy

logger = logging.getLogger(__name__)

EXCHANGES = ("sparse", "dense")


@final
@dataclass(frozen=True)
class FullGraph(Strategy):
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

    def check_ranks(self, num_ranks: int) -> None:
        if self.grid != "auto":
            layout = parse_grid(self.grid)
            self._check_layout(layout, layout.of(num_ranks))

    def place(self, source: Graph | Store, communicator: Communicator, run: ExpectedRun) -> "PlacedOnGrid":
        # Before anything is said, so that all ranks refuse alike.
        self.check_ranks(communicator.num_ranks)
        layout = None if self.grid == "auto" else parse_grid(self.grid)
        # Blocks of shuffled nodes have alike many edges; rows that nobody needs are most where neighbours share a part.
        by_default = "metis" if self.is_sparse else "random"
        partitioner = by_default if self.partitioner == "auto" else self.partitioner
        chunks = chunks_of(source, communicator, partitioner=partitioner)
        plan = None
        if communicator.num_ranks == 1:
            block_map = BlockMap(Grid(), chunks.chunk_map)
        elif layout is None:
            plan = self._plan(source, chunks, communicator, run.model)
            block_map = BlockMap(plan.best.grid, chunks.chunk_map)
        else:
            block_map = block_map_of(layout, communicator.num_ranks, chunks.chunk_map)
        check_all_ready(communicator, _lacking(chunks, block_map, communicator.rank))
        placement = place(
            chunks.open,
            block_map,
            communicator,
            is_sparse=self.is_sparse,
            is_staged=self.staged,
        )
        placement = self._with_edges(placement, layout, run.model)
        if is_coded(self.codec, communicator.num_ranks):
            check_agreement(communicator, {"codec": self.codec, "schedule": self.schedule})
        coding = Coding.of(placement, self.codec, self.schedule)
        return PlacedOnGrid(run=run, settings=self, placement=placement, coding=coding, plan=plan)

    def _with_edges(self, placement: Placement, layout: Layout | None, model: nn.Module) -> Placement:
        """Moves edges between two ranks to one of the two, where the grid has one axis; all ranks call it together."""
        num_ranks = placement.communicator.num_ranks
        is_one_axis = placement.grid.pi == num_ranks and isinstance(placement.sources, AxisExchange)
        is_one_axis = is_one_axis and self.is_sparse and not self.staged
        if self.edges != "auto" and not is_one_axis:
            raise ConfigError(
                f"edges={self.edges} is for grids of one axis with sparse exchange and without stages, and this is "
                f"{placement.grid}, whose blocks say where edges lie. Use grid='1d', or leave edges out."
            )
        edges: EdgePlace = "cover" if self.edges == "auto" else self.edges
        has_no_sums = is_coded(self.codec, num_ranks) and why_not_recompute(model) is not None
        if self.edges == "auto" and (layout is not None or has_no_sums):
            return placement
        if num_ranks == 1 or not is_one_axis:
            return placement
        check_agreement(placement.communicator, {"edges": self.edges})
        return with_edges_at(placement, edges)

    def _check_layout(self, layout: Layout, grid: Grid) -> None:
        """Raises ConfigError where a codec, or stages, are asked for in a layout that has none."""
        if is_coded(self.codec, grid.num_ranks) and (layout.is_as_published or grid.pj > 1):
            raise ConfigError(
                f"codec {self.codec} is for whole rows and blocks that stay where they are, a grid with pj=1; "
                f'grid="{self.grid}" has pj={grid.pj}. Use 1d, 1d_columns, 1.5d or 2d, or the codec identity.'
            )
        if self.staged and layout.is_as_published:
            raise ConfigError(
                f'grid="{self.grid}" moves whole blocks, as in its paper, and has no stages. Use 1d, 1.5d, 2d or '
                f"another grid, or leave staged out."
            )

    def _plan(self, source: Graph | Store, chunks: Chunks, communicator: Communicator, model: nn.Module) -> Plan:
        """Returns the grids of all ranks, weighed; all ranks call it together."""
        environment, chunk_map = rank_environment(), chunks.chunk_map
        dtype = source.x.dtype if isinstance(source, Graph) else source.features_dtype
        one_axis = BlockMap(Grid(pi=communicator.num_ranks), chunk_map)
        check_all_ready(communicator, _lacking(chunks, one_axis, communicator.rank))
        about = source if isinstance(source, Graph) else source.manifest
        is_weighted = source.edge_weight is not None if isinstance(source, Graph) else source.chunk(0).has_weights
        workload = Workload.of_model(
            model,
            about.num_features,
            dtype,
            is_weighted=is_weighted,
            largest_num_rows=int(np.diff(chunk_map.rank_starts).max()),
        )
        plan = make_plan(
            survey(chunks.open, chunk_map, communicator, is_sparse=self.is_sparse),
            workload=workload,
            itemsize=dtype.itemsize,
            link_mbit=self.link_mbit,
            limit_bytes=memory_limit(communicator, 1 if environment is None else environment.num_local_ranks),
            most_slices=None if isinstance(parse_codec(self.codec), Identity) else 1,
            is_staged=self.staged,
        )
        if communicator.rank == 0:
            logger.info("Grids of %s ranks, for the busiest one:\n%s", communicator.num_ranks, plan.table())
        return plan

    @property
    def is_sparse(self) -> bool:
        """Whether only rows that some edge needs are exchanged."""
        return self.exchange == "sparse"


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedOnGrid(PlacedRows):
    """A rank's rows, and its block of the edges.

    Args:
        coding: how messages are written; None: as they are.
        plan: the grids that were weighed, where the grid was chosen here.
    """

    settings: FullGraph
    coding: Coding | None
    plan: Plan | None

    def check(self) -> None:
        super().check()
        model, placement, settings = self.run.model, self.placement, self.settings
        check_convolutions(model, placement.grid)
        check_symmetric_convolutions(model, settings.grid)
        check_coded(model, placement, settings.codec)
        if placement.grid.pj > 1:
            # Layers too narrow to be sliced show when they are tried.
            self.traces.of(placement)

    def _start(self, seed: int) -> ShardedWorker:
        return ShardedWorker(self.traces, self.placement, self.coding, seed)


def _lacking(chunks: Chunks, block_map: BlockMap, rank: int) -> str | None:
    """Returns what a rank lacks of what it has to read, in a sentence."""
    try:
        for number, names in block_map.arrays_of(rank).items():
            chunks.check(number, names)
    except StoreError as error:
        return str(error)
    return None

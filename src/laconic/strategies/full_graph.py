"""Exact full-graph training on a grid of ranks: 1D, 1.5D, 2D, 3D and feature-parallel (CAGNET, arXiv 2005.03300)."""

import logging
from dataclasses import dataclass
from typing import Literal, final

from torch import nn

from laconic.attach.fixed_operators import why_not_recompute
from laconic.comm.codecs import is_coded, parse_codec
from laconic.comm.codecs.identity import Identity
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid, Layout, OneD, parse_grid
from laconic.errors import ConfigError, StoreError
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement, check_all_ready
from laconic.papers.cagnet.layouts import block_map_of
from laconic.papers.cagnet.symmetry import check_symmetric_convolutions
from laconic.sharded.block import BlockMap
from laconic.sharded.check import check_convolutions
from laconic.sharded.coding import Coding
from laconic.sharded.cover import Covers
from laconic.sharded.edge_placement import find_covers, with_covers
from laconic.sharded.placement import Placement, place
from laconic.sharded.plan import Plan, make_plan, memory_limit
from laconic.sharded.reach import check_reach, check_rows
from laconic.sharded.survey import survey
from laconic.sharded.worker import ShardedWorker
from laconic.sharded.workload import Workload
from laconic.specs import unknown_name
from laconic.store import Store
from laconic.strategies._checks import check_coded, check_edges, check_link, check_schedule, edges_for
from laconic.strategies._chunks import Chunks, chunks_of
from laconic.strategies._placed import PlacedExchanging
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
        reach: over how many hops rows of other ranks are computed here on a grid of one axis, as in the strategy
            exchange. By default 0 where a grid is named, and as many as make epochs the shortest where auto chose one.
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
    reach: int | None = None
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
        check_reach(self.reach, "full_graph")
        if self.staged and not isinstance(parse_codec(self.codec), Identity):
            raise ConfigError(
                f"full_graph: staged rows go as they are, and codec {self.codec} writes a product's rows at once. "
                f"Leave out one of the two."
            )
        check_link(self.link_mbit, "full_graph")

    def check_ranks(self, num_ranks: int) -> None:
        # An automatic grid can always have one axis.
        layout = OneD() if self.grid == "auto" else parse_grid(self.grid)
        self._check_layout(layout, layout.of(num_ranks))

    def place(self, source: Graph | Store, communicator: Communicator, run: ExpectedRun) -> "PlacedOnGrid":
        # Before anything is said, so that all ranks refuse alike.
        self.check_ranks(communicator.num_ranks)
        layout = None if self.grid == "auto" else parse_grid(self.grid)
        # Blocks of shuffled nodes have alike many edges; rows that nobody needs are most where neighbours share a part.
        by_default = "metis" if self.is_sparse else "random"
        partitioner = by_default if self.partitioner == "auto" else self.partitioner
        chunks = chunks_of(source, communicator, partitioner=partitioner)
        check_rows(self.reach, chunks.chunk_map)
        names, num_ranks = ("codec", "schedule", "edges", "reach"), communicator.num_ranks
        check_agreement(communicator, {name: str(getattr(self, name)) for name in names})
        block_map, plan, covers = BlockMap.one_axis(chunks.chunk_map), None, None
        if layout is not None and num_ranks > 1:
            block_map = block_map_of(layout, num_ranks, chunks.chunk_map)
        placement = self._on(block_map, chunks, communicator)
        if num_ranks > 1 and self._can_cover and (layout is None or self.edges != "auto"):
            covers = find_covers(placement, edges_for(self, run.model, num_ranks))
        if num_ranks > 1 and layout is None:
            plan = self._plan(placement, covers, run.model)
        # Where the plan chose one axis, edges and rows may lie where they cost least.
        is_free = plan is not None and plan.best.grid == placement.grid and self._can_cover
        if plan is not None and plan.best.grid != placement.grid:
            # Two placements at once would hold the features twice.
            del placement, covers
            placement = self._on(BlockMap(plan.best.grid, chunks.chunk_map), chunks, communicator)
        elif covers is not None:
            placement = with_covers(placement, covers)
        return PlacedOnGrid(
            run=run,
            settings=self,
            placement=placement,
            coding=Coding.of(placement, self.codec, self.schedule),
            reach=self.reach if is_free else self.reach or 0,
            link_mbit=self.link_mbit,
            plan=plan,
        )

    @property
    def _can_cover(self) -> bool:
        """Whether rows travel so that some of them may be summed up or computed instead."""
        return self.is_sparse and not self.staged

    @property
    def _asks_one_axis(self) -> str:
        """The settings that grids of one axis alone have, or nothing."""
        edges = [f"edges={self.edges}"] if self.edges != "auto" else []
        return " and ".join(edges + ([f"reach={self.reach}"] if self.reach else []))

    def _on(self, block_map: BlockMap, chunks: Chunks, communicator: Communicator) -> Placement:
        """Returns the placement of this rank on a grid; all ranks call it together."""
        check_all_ready(communicator, _lacking(chunks, block_map, communicator.rank))
        return place(chunks.open, block_map, communicator, is_sparse=self.is_sparse, is_staged=self.staged)

    def _check_layout(self, layout: Layout, grid: Grid) -> None:
        """Raises ConfigError where a codec, stages, edges or a reach are asked for in a layout that has none."""
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

        is_one_axis = not layout.is_as_published and grid.pi == grid.num_ranks
        if self._asks_one_axis and grid.num_ranks > 1 and not (is_one_axis and self._can_cover):
            raise ConfigError(
                f"{self._asks_one_axis} is for grids of one axis with sparse exchange and without stages, and this is "
                f'grid="{self.grid}" (pi={grid.pi}, pk={grid.pk}, pj={grid.pj}), exchange={self.exchange}, '
                f'staged={self.staged}. Use grid="1d" or "auto" with exchange=sparse and staged=False, or leave '
                f"{self._asks_one_axis} out."
            )

    def _plan(self, one_axis: Placement, covers: Covers | None, model: nn.Module) -> Plan:
        """Returns the grids, weighed; all ranks call it together.

        Args:
            one_axis: the placement on the grid of one axis, and `covers` who serves its edges between ranks.
        """
        communicator = one_axis.communicator
        # Attention and maximum fetch whole rows, which no cover spares.
        counted = covers if why_not_recompute(model) is None else None
        sizes = survey(one_axis, counted, is_sparse=self.is_sparse)
        asked = self._asks_one_axis
        plan = make_plan(
            [one for one in sizes if not asked or one.grid.pi == communicator.num_ranks],
            workload=Workload.of_model(model, one_axis),
            itemsize=one_axis.shard.x.itemsize,
            link_mbit=self.link_mbit,
            limit_bytes=memory_limit(communicator),
            most_slices=None if isinstance(parse_codec(self.codec), Identity) else 1,
            is_staged=self.staged,
        )
        if communicator.rank == 0:
            only = f" with one axis, which {asked} needs" if asked else ""
            logger.info("Grids of %s ranks%s, for the busiest one:\n%s", communicator.num_ranks, only, plan.table())
        return plan

    @property
    def is_sparse(self) -> bool:
        """Whether only rows that some edge needs are exchanged."""
        return self.exchange == "sparse"


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedOnGrid(PlacedExchanging):
    """A rank's rows, and its block of the edges.

    Args:
        plan: the grids that were weighed, where the grid was chosen here.
    """

    settings: FullGraph
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
        return ShardedWorker(self.traces, self._with_reach(), self.coding, seed)


def _lacking(chunks: Chunks, block_map: BlockMap, rank: int) -> str | None:
    """Returns what a rank lacks of what it has to read, in a sentence."""
    try:
        for number, names in block_map.arrays_of(rank).items():
            chunks.check(number, names)
    except StoreError as error:
        return str(error)
    return None

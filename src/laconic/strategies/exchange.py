"""Each rank gets its neighbours' rows by whichever way is the cheapest, exactly or through a codec.

For an edge u -> v between two ranks the row of u is *fetched*, or *summed up* at its owner into a partial sum for v
(`edges`), or *computed here* from constants that came once (`reach`). With `edges=destination, reach=0` this is halo
exchange, and with a codec VARCO (arXiv 2406.17611).
"""

import logging
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from torch import nn

from laconic.attach.fixed_operators import why_not_recompute
from laconic.comm.codecs import is_coded
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement
from laconic.sharded.block import BlockMap
from laconic.sharded.changing_worker import ChangingWorker
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.coding import Coding
from laconic.sharded.edge_placement import EdgePlace, with_edges_at
from laconic.sharded.placement import Placement, place
from laconic.sharded.reach import check_reach, choose_reach, with_reach
from laconic.sharded.worker import traffic_of
from laconic.store import Store
from laconic.strategies._checks import check_coded, check_edges, check_link, check_schedule
from laconic.strategies._chunks import chunks_of
from laconic.strategies._placed import PlacedRows
from laconic.strategies.base import ExpectedRun, Strategy

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class Exchange(Strategy):
    """Each rank owns a part of the nodes and gets what it lacks of its neighbours' rows, layer by layer.

    In training, rows, sums and their gradients go through the codec; evaluation is exact.

    Args:
        edges: where edges between two ranks lie: destination (rows are fetched), source (partial sums are sent), cover
            (the fewest of both together), or auto: cover, but destination for a model whose rows are coded and that
            has attention.
        reach: over how many hops rows of other ranks are computed here. By default as many as make epochs the
            shortest at the speed of the link, by a count of bytes and operations.
        link_mbit: speed of a rank's link. Told, not measured: a run that is resumed has to choose the same.
        codec: how rows are written for the way; identity changes nothing. `laconic.comm.codecs` has them all.
        schedule: at which rate, epoch by epoch. `laconic.comm.schedules` has them all.
        partitioner: cuts a graph that does not come from a store.
        raw_last: the last convolution's messages go as they are, as in the paper.
    """

    codec: str = "identity"
    schedule: str = "constant"
    partitioner: str = "metis"
    raw_last: bool = False
    edges: Literal["auto", "destination", "source", "cover"] = "auto"
    reach: int | None = None
    link_mbit: float = 1000.0

    def __post_init__(self) -> None:
        check_schedule(self.codec, self.schedule)
        check_edges(self.edges)
        if self.reach is not None and self.reach < 0:
            raise ConfigError(f"exchange: reach should be 0 or more hops, or left out; got {self.reach}.")
        check_link(self.link_mbit, "exchange")

    @property
    def changes_graph(self) -> bool:
        return True

    def place(self, source: Graph | Store, communicator: Communicator, run: ExpectedRun) -> "PlacedExchange":
        chunks = chunks_of(source, communicator, partitioner=self.partitioner)
        self._check_reach_fits(chunks.chunk_map)
        placement = place(chunks.open, BlockMap.one_axis(chunks.chunk_map), communicator)
        if communicator.num_ranks > 1:
            names = ("codec", "schedule", "raw_last", "edges", "reach", "link_mbit")
            check_agreement(communicator, {name: str(getattr(self, name)) for name in names})
            placement = with_edges_at(placement, self._edges_for(run.model, communicator))
        return PlacedExchange(
            run=run,
            settings=self,
            coding=Coding.of(placement, self.codec, self.schedule, raw_last=self.raw_last),
            placement=with_reach(placement, self.reach or 0),
            num_classes=(source if isinstance(source, Graph) else source.manifest).num_classes,
        )

    def _edges_for(self, model: nn.Module, communicator: Communicator) -> EdgePlace:
        """Returns where edges between ranks are to lie."""
        if self.edges != "auto":
            return self.edges
        has_no_sums = is_coded(self.codec, communicator.num_ranks) and why_not_recompute(model) is not None
        return "destination" if has_no_sums else "cover"

    def _check_reach_fits(self, chunk_map: ChunkMap) -> None:
        """Raises ConfigError where a reach is asked for and a rank has too few rows for it."""
        # A sum of one row and many is one of many to torch: hops are told apart by their numbers of rows.
        if self.reach and np.diff(chunk_map.rank_starts).min() < 2:
            raise ConfigError(
                f"reach={self.reach} needs two nodes at least on every rank, and one of the "
                f"{len(chunk_map.rank_starts) - 1} ranks has fewer. Use fewer ranks, or leave reach out."
            )


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedExchange(PlacedRows):
    """A rank's rows, its edges, and the rows of others that it computes if a reach is asked for.

    Args:
        coding: how messages are written; None: as they are.
        num_classes: of the graph.
    """

    settings: Exchange
    coding: Coding | None
    num_classes: int

    def check(self) -> None:
        super().check()
        model, placement, reach = self.run.model, self.placement, self.settings.reach
        check_coded(model, placement, self.settings.codec)
        check_reach(self.traces, placement)
        reason = self.trial.why_not_hops(reach) if reach and placement.hops else None
        if reason is not None:
            raise UnsupportedModelError(
                f"reach={reach} computes rows of other ranks here, and this model is not the same then: tried on a "
                f"tiny graph, {reason}. Leave reach out, or set reach=0."
            )

    def _start(self, seed: int) -> ChangingWorker:
        edges, placement, traces = self.settings.edges, self._with_chosen_reach(), self.traces
        if edges == "auto":
            edges = "destination" if self.coding is not None and not placement.is_covered else "cover"
        worker = ChangingWorker(
            traces, placement, self.coding, seed, edges=edges, num_classes=self.num_classes, prepare=self.prepare
        )
        if placement.communicator.rank == 0 and placement.communicator.num_ranks > 1:
            logger.info("Neighbours on other ranks: %s.", worker.choice)
        return worker

    def _with_chosen_reach(self) -> Placement:
        """Returns the placement with the reach that makes epochs the shortest, where none is set.

        The model is tried with it on a tiny graph first: where its outputs differ, rows are exchanged.
        """
        placement, coding = self.placement, self.coding
        if self.settings.reach is not None:
            return placement
        chosen = choose_reach(
            self.traces, placement, self.settings.link_mbit, lambda other: traffic_of(self.traces, other, coding)
        )
        reason = self.trial.why_not_hops(len(chosen.hops)) if chosen.hops else None
        if reason is None:
            return chosen
        if placement.communicator.rank == 0:
            logger.info("Rows of other ranks are exchanged, not computed here: tried on a tiny graph, %s.", reason)
        return placement

"""Each rank gets its neighbours' rows by whichever way is the cheapest, exactly or through a codec.

For an edge u -> v between two ranks the row of u is *fetched*, or *summed up* at its owner into a partial sum for v
(`edges`), or *computed here* from constants that came once (`reach`). With `edges=destination, reach=0` this is halo
exchange, and with a codec VARCO (arXiv 2406.17611).
"""

import logging
from dataclasses import dataclass
from typing import Literal, final

from laconic.comm.communicator import Communicator
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement
from laconic.sharded.block import BlockMap
from laconic.sharded.changing_worker import ChangingWorker
from laconic.sharded.coding import Coding
from laconic.sharded.edge_placement import with_edges_at
from laconic.sharded.placement import place
from laconic.sharded.reach import check_reach, check_rows
from laconic.store import Store
from laconic.strategies._checks import check_coded, check_edges, check_link, check_schedule, edges_for
from laconic.strategies._chunks import chunks_of
from laconic.strategies._placed import PlacedExchanging
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
        check_reach(self.reach, "exchange")
        check_link(self.link_mbit, "exchange")

    @property
    def changes_graph(self) -> bool:
        return True

    def place(self, source: Graph | Store, communicator: Communicator, run: ExpectedRun) -> "PlacedExchange":
        chunks = chunks_of(source, communicator, partitioner=self.partitioner)
        check_rows(self.reach, chunks.chunk_map)
        placement = place(chunks.open, BlockMap.one_axis(chunks.chunk_map), communicator)
        if communicator.num_ranks > 1:
            names = ("codec", "schedule", "raw_last", "edges", "reach", "link_mbit")
            check_agreement(communicator, {name: str(getattr(self, name)) for name in names})
            placement = with_edges_at(placement, edges_for(self, run.model, communicator.num_ranks))
        return PlacedExchange(
            run=run,
            settings=self,
            coding=Coding.of(placement, self.codec, self.schedule, raw_last=self.raw_last),
            placement=placement,
            reach=self.reach,
            link_mbit=self.link_mbit,
            num_classes=(source if isinstance(source, Graph) else source.manifest).num_classes,
        )


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedExchange(PlacedExchanging):
    """A rank's rows and its edges.

    Args:
        num_classes: of the graph.
    """

    settings: Exchange
    num_classes: int

    def check(self) -> None:
        super().check()
        check_coded(self.run.model, self.placement, self.settings.codec)

    def _start(self, seed: int) -> ChangingWorker:
        placement = self._with_reach()
        worker = ChangingWorker(
            self.traces,
            placement,
            self.coding,
            seed,
            edges=edges_for(self.settings, self.run.model, placement.communicator.num_ranks),
            num_classes=self.num_classes,
            prepare=self.prepare,
        )
        if placement.communicator.rank == 0 and placement.communicator.num_ranks > 1:
            logger.info("Neighbours on other ranks: %s.", worker.choice)
        return worker

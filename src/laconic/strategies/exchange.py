"""Each rank gets its neighbours' rows by whichever way is the cheapest, exactly or through a codec.

For an edge u -> v between two ranks the row of u is *fetched*, or *summed up* at its owner into a partial sum for v
(`edges`), or *computed here* from constants that came once (`reach`). With `edges=destination, reach=0` this is halo
exchange, and with a codec VARCO (arXiv 2406.17611).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import numpy as np
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from laconic.attach import Attachment
from laconic.attach.fixed_operators import why_not_recompute
from laconic.comm.communicator import Communicator
from laconic.comm.new_rows import NewRows
from laconic.errors import CheckpointError, ConfigError, UnsupportedModelError
from laconic.graph import Graph, GraphChange, Shard
from laconic.launching.agreement import check_agreement
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.block import BlockMap
from laconic.sharded.change import Changed, change_placement
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.coder import ExchangeCoder, coded_fetch
from laconic.sharded.cut import Cut
from laconic.sharded.edge_placement import EdgePlace, with_edges_at
from laconic.sharded.hops import with_hops
from laconic.sharded.placement import place
from laconic.sharded.rates import Exchanged, RatePlan, spent_before
from laconic.sharded.reach import check_reach, choose_reach, with_reach
from laconic.sharded.rehearsal import exchanges_of_step
from laconic.sharded.trial import check_shared, why_not_hops
from laconic.store import Store
from laconic.strategies._checks import (
    check_codable,
    check_coded_edges,
    check_edges,
    check_link,
    check_plain_model,
    check_schedule,
)
from laconic.strategies._chunks import chunks_of
from laconic.strategies._placed import PlacedStrategy

logger = logging.getLogger(__name__)


@final
@dataclass(eq=False)
class Exchange(PlacedStrategy):
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
    _model: nn.Module | None = field(default=None, init=False, repr=False)
    _num_classes: int = field(default=0, init=False, repr=False)
    _prepare: Callable[[Tensor], Tensor] | None = field(default=None, init=False, repr=False)
    # From which epoch on the graph is what it is now, and what messages before it cost.
    _past: tuple[int, int] = field(default=(1, 0), init=False, repr=False)
    # Whether every rank has two rows at least.
    _has_rows: bool = field(default=False, init=False, repr=False)
    _is_decided: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        check_schedule(self.codec, self.schedule)
        check_edges(self.edges)
        if self.reach is not None and self.reach < 0:
            raise ConfigError(f"exchange: reach should be 0 or more hops, or left out; got {self.reach}.")
        check_link(self.link_mbit, "exchange")

    def expect_model(self, model: nn.Module) -> None:
        self._model = model

    @property
    def choice(self) -> str:
        """How neighbours are known, for people."""
        at = "destination" if not self.placement.is_covered else self.edges
        return f"edges={'cover' if at == 'auto' else at}, reach={len(self.placement.hops)}"

    @property
    def coding(self) -> tuple[str, str]:
        return self.codec, self.schedule

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        chunks = chunks_of(source, communicator, partitioner=self.partitioner)
        chunk_map = ChunkMap.even(chunks.num_nodes, communicator.num_ranks)
        self._check_reach_fits(chunk_map)
        placement = place(chunks.open, BlockMap.one_axis(chunk_map), communicator)
        self._num_classes = (source if isinstance(source, Graph) else source.manifest).num_classes
        if communicator.num_ranks > 1:
            names = ("codec", "schedule", "raw_last", "edges", "reach", "link_mbit")
            check_agreement(communicator, {name: str(getattr(self, name)) for name in names})
        self._placement = placement
        self._place_edges(self._model)
        return self._placement.shard

    def _place_edges(self, model: nn.Module | None) -> None:
        """Places the edges, and the rows that are computed here if a reach is asked for; all ranks call it together.

        Args:
            model: None where it is not known yet.
        """
        edges: EdgePlace = "cover" if self.edges == "auto" else self.edges
        placement = self.placement
        if placement.communicator.num_ranks > 1:
            if self.edges == "auto" and self._is_coded and model is not None and why_not_recompute(model) is not None:
                edges = "destination"
            placement = with_edges_at(placement, edges)
        self._cut = Cut.of(placement) if self._is_coded else None
        self._placement = with_reach(placement, self.reach or 0)

    def _check_reach_fits(self, chunk_map: ChunkMap) -> None:
        # A sum of one row and many is one of many to torch: hops are told apart by their numbers of rows.
        self._has_rows = int(np.diff(chunk_map.rank_starts).min()) > 1
        if self.reach and not self._has_rows:
            raise ConfigError(
                f"reach={self.reach} needs two nodes at least on every rank, and one of the "
                f"{len(chunk_map.rank_starts) - 1} ranks has fewer. Use fewer ranks, or leave reach out."
            )

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        self._prepare = prepare
        return super().with_features(x, prepare)

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)
        check_codable(self.codec, shard, self.placement.communicator)
        check_shared(model, shard)
        self._know(model)
        check_coded_edges(model, self.placement, self.codec)
        check_reach(model, self.placement)
        reason = why_not_hops(model, shard, self.reach) if self.reach and self.placement.hops else None
        if reason is not None:
            raise UnsupportedModelError(
                f"reach={self.reach} computes rows of other ranks here, and this model is not the same then: tried on "
                f"a tiny graph, {reason}. Leave reach out, or set reach=0."
            )

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        self._know(model)
        if self.placement.communicator.rank == 0 and self.placement.communicator.num_ranks > 1:
            logger.info("Neighbours on other ranks: %s.", self.choice)
        return super().attach(model, shard, seed=seed)

    def _know(self, model: nn.Module) -> None:
        """Decides how neighbours are known, once, when features are prepared and the model is known."""
        if self._is_decided:
            return
        self._is_decided = True
        if self._model is None and self.edges == "auto":
            self._place_edges(model)
        if self.reach is None and self._has_rows:
            self._choose_reach(model)

    def _choose_reach(self, model: nn.Module) -> None:
        placement = self.placement
        chosen = choose_reach(model, placement, self.link_mbit, lambda other: self._predict(model, other))
        reason = why_not_hops(model, chosen.shard, len(chosen.hops)) if chosen.hops else None
        if reason is None:
            self._placement = chosen
        elif placement.communicator.rank == 0:
            logger.info("Rows of other ranks are exchanged, not computed here: tried on a tiny graph, %s.", reason)

    def change(self, change: GraphChange) -> Shard:
        assert self._attachment is not None, "attach comes before the first change"
        assert self._aggregator is not None
        changed = change_placement(
            with_edges_at(self.placement, "destination"),
            change,
            self._num_classes,
            self._prepare or _as_it_is,
            keep_features=self._aggregator.uses_halo_features or self.placement.halo_x is not None,
        )
        if not change.is_empty:
            self._move_to(changed, self._attachment)
        return self._attachment.shard

    def _move_to(self, changed: Changed, attachment: Attachment) -> None:
        coder = self._coder
        was_covered, reach = self.placement.is_covered, len(self.placement.hops)
        after = with_reach(with_edges_at(changed.placement, self._edges_now), reach)
        if coder is not None:
            assert self._cut is not None
            # What lies between ranks is counted anew; what the schedule began with stays.
            now = Cut.of(after)
            cut = replace(self._cut, fetched=now.fetched, folded=now.folded)
            exchanges = exchanges_of_step(attachment.model, after, cut)
            fetch = coded_fetch(after, self._members[0], cut.fetched)
            if not was_covered and not after.is_covered:
                # Another cover has other lists: memories of codecs begin anew with it.
                fetch.take_over(coder.fetch, changed.kept_sent, changed.kept_received)
            past = (coder.next_epoch, self._spent(coder, fetch.new, exchanges))
            plan = self._rate_plan(attachment.model, cut, exchanges, past=past)
            if coder.next_epoch > 1:
                # A budget that does not pay for the graph as it will be is told while it is as it was. Before the first
                # epoch, changes may be those of a run that is continued, whose bytes `load_state` has still to tell.
                plan.check(exchanges)
            coder.change(after, fetch, cut, plan)
            self._cut, self._past = cut, past
        self._placement = after
        shard = with_hops(after.shard, after.hops, after.communicator.ledger)
        self._aggregator = ShardedAggregator(after, coder, shard=shard)
        attachment.move_to(shard, self._aggregator)

    @property
    def _edges_now(self) -> EdgePlace:
        """Where edges are placed again after a change."""
        if self.edges != "auto":
            return self.edges
        return "destination" if self._is_coded and not self.placement.is_covered else "cover"

    def _spent(self, coder: ExchangeCoder, new: NewRows | None, exchanges: list[Exchanged]) -> int:
        """Returns the bytes of messages up to now, if the schedule goes by them."""
        if coder.plan.costs is None:
            return 0
        spent = spent_before(coder.plan, coder.next_epoch, coder.measured)
        if new is not None:
            # The first messages after a change, at most: new rows go as they are.
            spent += int(new.counts.sum()) * sum(one.width * one.dtype.itemsize for one in exchanges)
        return spent

    def state(self) -> dict[str, Any]:
        version = self.placement.exchange.version
        changes = {"plan_version": version, "past": list(self._past)} if version else {}
        return {**changes, **super().state()}

    def load_state(self, state: dict[str, Any]) -> None:
        version, here = state.get("plan_version", 0), self.placement.exchange.version
        if version != here:
            raise CheckpointError(
                f"This state is of a graph that was changed {version} times, and here it was changed {here} times. "
                f"Make the same changes, in their order, after attach and before load_state."
            )
        super().load_state(state)
        if self._coder is not None and version:
            assert self._attachment is not None
            self._past = tuple(state["past"])
            model = self._attachment.model
            assert self._cut is not None
            exchanges = exchanges_of_step(model, self.placement, self._cut)
            self._coder.plan = self._rate_plan(model, self._cut, exchanges)

    def _rate_plan(
        self,
        model: nn.Module,
        cut: Cut,
        exchanges: list[Exchanged],
        raw_layers: frozenset[int] = frozenset(),
        past: tuple[int, int] | None = None,
    ) -> RatePlan:
        num_layers = sum(isinstance(module, MessagePassing) for module in model.modules())
        raw_layers = frozenset([num_layers - 1] if self.raw_last else [])
        return super()._rate_plan(model, cut, exchanges, raw_layers, self._past if past is None else past)


def _as_it_is(x: Tensor) -> Tensor:
    return x

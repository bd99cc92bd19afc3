"""Neighbours on other ranks are historical, refreshed now and then; between refreshes only gradients travel."""

import logging
from dataclasses import dataclass
from typing import Literal, final

from torch import nn

from laconic.attach.norms import is_over_nodes
from laconic.cached.comparison import faster_exchange
from laconic.cached.intervals import Intervals
from laconic.cached.khop_halo import KHopHalo, expand_halo
from laconic.cached.recomputing import check_keeps_sums, why_not_sums
from laconic.cached.refresh_coder import parse_refresh_codec
from laconic.cached.summed_calls import SummedCalls
from laconic.cached.worker import CachedWorker
from laconic.comm.codecs import is_coded
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.gradients.reductions import parse_reduction
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement
from laconic.sharded.block import BlockMap
from laconic.sharded.placement import place
from laconic.sharded.reach_choice import Costs
from laconic.specs import unknown_name
from laconic.store import Store
from laconic.strategies._checks import check_link
from laconic.strategies._chunks import chunks_of
from laconic.strategies._placed import PlacedRows
from laconic.strategies.base import ExpectedRun, Strategy

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class GradientOnly(Strategy):
    """Neighbours are historical between refreshes; training steps send gradients only. Evaluation is exact.

    Args:
        refresh_every: epochs from one refresh of historical neighbours to the next.
        gradual: the first refreshes come after 1, 2, 4, ... epochs, as weights move fastest then. By default where rows
            are kept.
        keep: sums, over a neighbour's neighbours, from which its row is computed here with today's weights; rows, the
            layer inputs of neighbours, as they were; or auto: sums for models and batches that it can be done for. With
            sums, losses have to be over training nodes: what others get in training may lack neighbours.
        turns: with sums, gradients flow through one in so many computed rows in each step, and count for all; 1:
            through all of them, which for two layers is exact. By default so many that it is at most twice as many as
            the rank has rows; 1 for features far wider than layers.
        reach: over how many hops rows of other ranks that training nodes see are here. With sums all of them are
            computed, the last from sums that are kept: one less than the model has layers is exact, and by default it
            is as many as add at most twice as many rows as the rank has, and half of those of all others. With rows the
            last are kept: as many as the model has layers is exact, and the default is 1.
        codec: how a refresh writes what is kept for the way; identity changes nothing.
        partitioner: cuts a graph that does not come from a store.
        gradients: how gradients travel: exact, bf16, or powersgd(rank=2).
        remote: share of the edges from other ranks that mini-batches are drawn from, new ones after each refresh.
        link_mbit: speed of a rank's link, by which the log tells where exact exchange would be faster; decides nothing.
    """

    refresh_every: int = 30
    gradual: bool | None = None
    keep: Literal["auto", "rows", "sums"] = "auto"
    turns: int | None = None
    reach: int | None = None
    codec: str = "quantize(bits=4, stochastic=False)"
    partitioner: str = "metis"
    gradients: str = "exact"
    remote: float = 1.0
    link_mbit: float = 1000.0

    def __post_init__(self) -> None:
        parse_reduction(self.gradients)
        parse_refresh_codec(self.codec)
        _check_settings(self)
        check_link(self.link_mbit, "gradient_only")

    @property
    def draws_batches(self) -> bool:
        # Rows of others that a batch reads are not computed.
        return not self.asks_for_sums and not self.extends_rows

    @property
    def asks_for_sums(self) -> bool:
        """Whether sums are to be kept, of whatever model."""
        # Where rows are kept no row is computed from sums: neither turns nor a reach by default are for them.
        return self.keep == "sums" or (self.keep == "auto" and not (self.turns is None and self.reach is None))

    @property
    def extends_rows(self) -> bool:
        """Whether rows are kept, beyond the nearest neighbours."""
        return self.keep == "rows" and self.reach is not None and self.reach > 1

    def place(self, source: Graph | Store, communicator: Communicator, run: ExpectedRun) -> "PlacedApart":
        chunks = chunks_of(source, communicator, partitioner=self.partitioner)
        placement = place(chunks.open, BlockMap.one_axis(chunks.chunk_map), communicator)
        if is_coded(self.codec, communicator.num_ranks):
            check_agreement(communicator, {"codec": self.codec})
        return PlacedApart(run=run, settings=self, placement=placement)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedApart(PlacedRows):
    """A rank's rows, and the edges into them."""

    settings: GradientOnly

    def check(self) -> None:
        super().check()
        if self.settings.asks_for_sums:
            check_keeps_sums(self.run.model)
        elif self.settings.extends_rows:
            _check_no_norms(self.run.model)

    def _start(self, seed: int) -> CachedWorker:
        settings, num_ranks = self.settings, self.placement.communicator.num_ranks
        # First: it may be refused, and then the model is left as it was.
        keeps_sums = self._keeps_sums()
        halo = self._find_halo(keeps_sums)
        is_gradual = not keeps_sums if settings.gradual is None else settings.gradual
        return CachedWorker(
            self.traces,
            self.placement,
            seed,
            reduction=parse_reduction(settings.gradients),
            intervals=Intervals(settings.refresh_every, is_gradual),
            codec=parse_refresh_codec(settings.codec) if is_coded(settings.codec, num_ranks) else None,
            halo=halo,
            keeps_sums=keeps_sums,
            num_turns=settings.turns,
            remote=settings.remote,
        )

    def _keeps_sums(self) -> bool:
        if self.settings.keep == "rows" or self.settings.asks_for_sums:
            return self.settings.keep != "rows"
        reason = "mini-batches are drawn" if self.run.takes_batches else why_not_sums(self.run.model)
        if reason is not None:
            self._tell(f"Of neighbours on other ranks, rows are kept (keep=rows): {reason}.")
        return reason is None

    def _find_halo(self, keeps_sums: bool) -> KHopHalo:
        """Returns the rows of others that are computed here, and those that are cached."""
        reach, placement = self.settings.reach, self.placement
        num_hops = SummedCalls.of(self.run.model, placement).num_hops if keeps_sums else reach or 1
        halo = expand_halo(placement, num_hops, reach if keeps_sums else num_hops)
        if keeps_sums or self.settings.extends_rows:
            self._tell(halo.describe(keeps_sums=keeps_sums))
        if keeps_sums and placement.communicator.num_ranks > 1:
            costs = Costs(self.settings.link_mbit, None, self.traces, lambda: self.trial)
            self._tell(faster_exchange(placement, halo, num_hops, costs))
        return halo

    def _tell(self, text: str) -> None:
        communicator = self.placement.communicator
        if text and communicator.rank == 0 and communicator.num_ranks > 1:
            logger.info("%s", text)


def _check_no_norms(model: nn.Module) -> None:
    """Raises UnsupportedModelError for a norm over nodes, which would count rows of other ranks as well."""
    for name, module in model.named_modules():
        if is_over_nodes(module):
            raise UnsupportedModelError(
                f"{name or 'the model'} is a {type(module).__name__}, whose statistics would count the rows of other "
                f"ranks that reach computes here. Leave reach out, or use a norm per row, such as torch.nn.LayerNorm."
            )


def _check_settings(strategy: GradientOnly) -> None:
    if strategy.refresh_every < 1:
        raise ConfigError(f"refresh_every should be 1 or more epochs; got {strategy.refresh_every}.")
    choices = ("auto", "rows", "sums")
    if strategy.keep not in choices:
        raise ConfigError(unknown_name(strategy.keep, choices, family="keep"))
    for name, least in (("turns", "1 (no turns)"), ("reach", "1 hop")):
        value = getattr(strategy, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ConfigError(f"{name} should be {least} or more, or be left out; got {value}.")
    if strategy.gradual not in (None, True, False):
        raise ConfigError(f"gradual should be True or False, or be left out; got {strategy.gradual}.")
    if not 0.0 <= strategy.remote <= 1.0:
        raise ConfigError(f"remote should be a share from 0 to 1; got {strategy.remote}.")

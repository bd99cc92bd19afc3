"""Neighbours on other ranks are historical, refreshed now and then; between refreshes only gradients travel."""

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, final

from torch import Tensor, nn

from laconic.attach import Attachment
from laconic.attach.norms import is_over_nodes
from laconic.cached.intervals import Intervals
from laconic.cached.khop_halo import KHopHalo, expand_halo
from laconic.cached.neighbour_cache import NeighbourCache, warning_of_old_weights
from laconic.cached.recomputing import check_keeps_sums, why_not_sums
from laconic.cached.refresh_coder import RefreshCoder, parse_refresh_codec
from laconic.cached.rehearsal import num_hops_of, rehearse
from laconic.comm.codecs.identity import Identity
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.gradients.reductions import parse_reduction
from laconic.graph import Graph, Shard
from laconic.launching.agreement import check_agreement
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.cut import Cut
from laconic.sharded.trial import check_shared
from laconic.specs import unknown_name
from laconic.store import Store
from laconic.strategies._checks import check_only_model, check_plain_model
from laconic.strategies._isolated import IsolatedStrategy

logger = logging.getLogger(__name__)


@final
@dataclass(eq=False)
class GradientOnly(IsolatedStrategy):
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
    _coder: RefreshCoder | None = field(default=None, init=False, repr=False)
    _cache: NeighbourCache | None = field(default=None, init=False, repr=False)
    _takes_batches: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self._reduction = parse_reduction(self.gradients)
        self._codec = parse_refresh_codec(self.codec)
        _check_settings(self)

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        self._place(source, communicator, self.partitioner)
        if self._is_coded:
            check_agreement(communicator, {"codec": self.codec})
        return self.placement.shard

    @property
    def intervals(self) -> Intervals:
        keeps_rows = self._cache is not None and not self._cache.keeps_sums
        return Intervals(self.refresh_every, keeps_rows if self.gradual is None else self.gradual)

    def expect_batches(self) -> None:
        self._takes_batches = True

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)
        check_shared(model, shard)
        if self._asks_for_sums:
            check_keeps_sums(model)
        elif self._extends_rows:
            _check_no_norms(model)

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        placement, communicator = self.placement, self.placement.communicator
        assert shard is placement.shard, "the shard comes from `place`"
        check_only_model(self._gradients is None, communicator)
        # First: it may be refused, and then the model is left as it was.
        keeps_sums = self._keeps_sums(model)
        halo = self._find_halo(model, keeps_sums)
        exact = ShardedAggregator(
            placement, known_halo_features=lambda: self._cache.halo_features if self._cache else None
        )
        attachment = self._attach(model, shard, seed, self.gradients, exact)
        if self._is_coded:
            self._coder = RefreshCoder(halo.placement, self._codec, Cut.of(halo.placement).fetched, seed)
        self._cache = NeighbourCache(
            attachment,
            placement,
            self._coder,
            remote=self.remote,
            halo=halo,
            keeps_sums=keeps_sums,
            num_turns=self.turns,
        )
        if communicator.num_ranks > 1 and communicator.rank == 0:
            attachment.call_on_changed_rows(warning_of_old_weights())
        return attachment

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        shard = super().start_epoch(epoch, step)
        self.cache.start_epoch(epoch)
        return shard

    def _enter(self, interval: int, epoch: int) -> None:
        if self._coder is not None:
            self._coder.start_epoch(self.intervals.first_epoch(interval))
        self.cache.enter(interval)

    @property
    def cache(self) -> NeighbourCache:
        """The historical neighbours of this rank."""
        assert self._cache is not None, "attach comes first"
        return self._cache

    def _interval_tensors(self) -> dict[str, Tensor]:
        return self.cache.tensors()

    def _load_interval_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.cache.load_tensors(tensors)

    @property
    def draws_batches(self) -> bool:
        # Rows of others that a batch reads are not computed.
        return not self._asks_for_sums and not self._extends_rows

    @property
    def drawn_from(self) -> Shard:
        return self.cache.drawn_from

    def using_batch(self, batch: Shard) -> AbstractContextManager[Shard]:
        assert self._attachment is not None, "attach comes before the first batch"
        assert not self.cache.keeps_sums, "expect_batches first"
        return self._attachment.using(batch, self.cache.batch_aggregator(batch))

    def predict_traffic(self, model: nn.Module, epoch: int = 1) -> list[LedgerRecord]:
        if self.placement.communicator.num_ranks == 1:
            return []
        return rehearse(model, self.placement, self.cache, self._coder, epoch, self.intervals, self._reduction)

    @property
    def _is_coded(self) -> bool:
        return not isinstance(self._codec, Identity) and self.placement.communicator.num_ranks > 1

    @property
    def _asks_for_sums(self) -> bool:
        # Where rows are kept no row is computed from sums: neither turns nor a reach by default are for them.
        return self.keep == "sums" or (self.keep == "auto" and not (self.turns is None and self.reach is None))

    @property
    def _extends_rows(self) -> bool:
        return self.keep == "rows" and self.reach is not None and self.reach > 1

    def _keeps_sums(self, model: nn.Module) -> bool:
        if self.keep == "rows" or self._asks_for_sums:
            return self.keep != "rows"
        reason = "mini-batches are drawn" if self._takes_batches else why_not_sums(model)
        if reason is not None:
            self._tell(f"Of neighbours on other ranks, rows are kept (keep=rows): {reason}.")
        return reason is None

    def _find_halo(self, model: nn.Module, keeps_sums: bool) -> KHopHalo:
        """Returns the rows of others that are computed here, and those that are cached."""
        if keeps_sums:
            halo = expand_halo(self.placement, num_hops_of(model, self.placement), self.reach)
        else:
            reach = self.reach or 1
            halo = expand_halo(self.placement, reach, reach)
        if keeps_sums or self._extends_rows:
            self._tell(halo.describe(keeps_sums=keeps_sums))
        return halo

    def _tell(self, text: str) -> None:
        communicator = self.placement.communicator
        if communicator.rank == 0 and communicator.num_ranks > 1:
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

"""PlacedStrategy: what strategies have in common whose ranks place their shards once and take every step together."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from laconic.attach import Attachment, attach
from laconic.comm.codecs import Codec, parse_codec
from laconic.comm.codecs.identity import Identity
from laconic.comm.schedules import Schedule, parse_schedule
from laconic.gradients.first_weights import copy_from_first
from laconic.gradients.shared import SharedGradients
from laconic.graph import Shard
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.booked import BookedCoder
from laconic.sharded.coder import ExchangeCoder
from laconic.sharded.cut import Cut
from laconic.sharded.edge_placement import with_edges_at
from laconic.sharded.hops import with_hops
from laconic.sharded.placement import Placement
from laconic.sharded.rates import Exchanged, RatePlan, costs_of
from laconic.sharded.rehearsal import exchanges_of_step, rehearse
from laconic.strategies._checks import check_only_model
from laconic.strategies.base import Strategy


@dataclass(eq=False)
class PlacedStrategy(Strategy):
    """Ranks hold a placement each, and share losses and gradients; messages may be coded."""

    _placement: Placement | None = field(default=None, init=False, repr=False)
    _attachment: Attachment | None = field(default=None, init=False, repr=False)
    _gradients: SharedGradients | None = field(default=None, init=False, repr=False)
    _coder: ExchangeCoder | None = field(default=None, init=False, repr=False)
    _aggregator: ShardedAggregator | None = field(default=None, init=False, repr=False)
    # What lies between ranks, where messages are coded.
    _cut: Cut | None = field(default=None, init=False, repr=False)

    @property
    @abstractmethod
    def coding(self) -> tuple[str, str]:
        """The specs of the codec and of the schedule."""

    @property
    def placement(self) -> Placement:
        """What this rank holds."""
        assert self._placement is not None, "place comes first"
        return self._placement

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        self._placement = replace(self.placement, shard=replace(self.placement.shard, x=x))
        return self._placement.shard

    @property
    def num_train(self) -> int:
        return self.placement.num_train

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        placement = self.placement
        assert shard is placement.shard, "the shard comes from `place`"
        check_only_model(self._gradients is None, placement.communicator)
        copy_from_first(model, placement.communicator)
        self._gradients = SharedGradients(model, placement.communicator)
        if self._cut is not None:
            exchanges = exchanges_of_step(model, placement, self._cut)
            plan = self._rate_plan(model, self._cut, exchanges)
            plan.check(exchanges)
            self._coder = ExchangeCoder(placement, self._cut, plan, seed, self._gradients)
        # Features are as they will stay: rows of others can come.
        shard = with_hops(shard, placement.hops, placement.communicator.ledger)
        self._aggregator = ShardedAggregator(placement, self._coder, shard=shard)
        self._attachment = attach(model, shard, seed=seed, aggregator=self._aggregator)
        if placement.communicator.num_ranks > 1:
            self._attachment.call_before_gradients(self._gradients.shared_pass.check)
        return self._attachment

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        assert self._attachment is not None, "attach comes before the first epoch"
        self._attachment.start_epoch(epoch, step)
        if self._coder is not None:
            self._coder.start_epoch(epoch, step)
        return self._attachment.shard

    def share_loss(self, total: Tensor, weight: float | None = None) -> Tensor:
        assert self._gradients is not None, "attach comes before the first loss"
        return self._gradients.share(total, weight)

    def state(self) -> dict[str, Any]:
        return {} if self._coder is None else self._coder.state()

    def load_state(self, state: dict[str, Any]) -> None:
        if self._coder is not None:
            self._coder.load_state(state)

    def tensors(self) -> dict[str, Tensor]:
        return {} if self._coder is None else self._coder.tensors()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        if self._coder is not None:
            self._coder.load_tensors(tensors)

    def predict_traffic(self, model: nn.Module, epoch: int = 1) -> list[LedgerRecord]:
        return self._predict(model, self.placement, epoch)

    def _predict(self, model: nn.Module, placement: Placement, epoch: int = 1) -> list[LedgerRecord]:
        """Returns the traffic of an epoch with a placement that this strategy might have."""
        cut, coder = self._cut, self._coder
        if cut is None:
            return rehearse(model, placement, epoch)
        plan = self._rate_plan(model, cut, exchanges_of_step(model, placement, cut))
        measured = () if coder is None else coder.measured
        plan = replace(plan, new=None if coder is None else coder.new_rows(epoch))
        return rehearse(model, placement, epoch, lambda ledger: BookedCoder(cut, ledger, plan, epoch, measured))

    def exact_traffic(self, model: nn.Module) -> list[LedgerRecord]:
        """Returns the traffic without a codec; of edges between two ranks, that of halo exchange."""
        placement = self.placement
        if placement.is_covered or placement.hops:
            placement = with_edges_at(placement, "destination")
        return rehearse(model, placement)

    @property
    def _members(self) -> tuple[Codec, Schedule]:
        codec, schedule = self.coding
        return parse_codec(codec), parse_schedule(schedule)

    @property
    def _is_coded(self) -> bool:
        return not isinstance(self._members[0], Identity) and self.placement.communicator.num_ranks > 1

    def _rate_plan(
        self,
        model: nn.Module,
        cut: Cut,
        exchanges: list[Exchanged],
        raw_layers: frozenset[int] = frozenset(),
        past: tuple[int, int] = (1, 0),
    ) -> RatePlan:
        """Returns the rates of the run.

        Args:
            raw_layers: layers whose messages go as they are.
            past: from which epoch on the graph is as it is now, and the bytes of messages before it.
        """
        codec, schedule = self._members
        costs = None
        if schedule.needs_costs:
            costs = costs_of(codec, cut, exchanges, raw_layers, first_epoch=past[0], spent=past[1])
        first_rate = codec.first_rate(cut.remote_share, cut.degree)
        return RatePlan(codec, schedule, cut.counts, raw_layers, first_rate, costs)

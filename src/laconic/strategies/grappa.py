"""Grappa (arXiv 2602.01872): ranks train in isolation on the chunks that they hold, and exchange only gradients."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, final

from torch import Tensor, nn

from laconic.attach import Attachment
from laconic.cached.intervals import Intervals
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.gradients.reductions import parse_reduction
from laconic.graph import Graph, Shard
from laconic.papers.grappa.correction import Correction, CorrectionKind
from laconic.papers.grappa.factors import Combination
from laconic.papers.grappa.isolated_graph import IsolatedGraph
from laconic.papers.grappa.rehearsal import rehearse
from laconic.papers.grappa.sweeping import SweepPlan, make_sweeper
from laconic.records import CoverageRecord, LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.trial import check_shared
from laconic.specs import unknown_name
from laconic.store import Store
from laconic.strategies._checks import check_only_model, check_plain_model
from laconic.strategies._isolated import IsolatedStrategy


@final
@dataclass(eq=False)
class Grappa(IsolatedStrategy):
    """Ranks train on the chunks that they hold; neighbours beyond are missing, and losses corrected for it.

    Evaluation is exact. The paper's ablations: UW is correction=none, FP is schedule=fixed; 50S is
    gradient_only(remote=0.5), as edges from other ranks need rows of them.

    Args:
        repartition_every: epochs of a super-epoch: how long a rank goes on with the variable chunks that it holds.
        variable: chunks of other ranks that a rank holds beside its own, other ones in each super-epoch.
        chunks: into how many chunks a graph in memory is cut; one per rank by default. A store has its own number.
        partitioner: cuts a graph that does not come from a store.
        schedule: in which order variable chunks come: cyclic, random, affinity (most edges first), or fixed.
        rechunk_every: sweeps after which variable chunks are brought together in new, random groups; 0 never.
        correction: of gradients of nodes that miss neighbours: none; node or batch, by coverage; degree, sums are
            divided by the degrees of the whole graph; or sweep, edges are weighted too, such that their average over a
            sweep is exact.
        hops: how far coverage looks.
        shrinkage: how far coverage weights are drawn towards 1: a number from 0 to 1, or auto; by default 0.
        combination: of ranks: self_normalised (nodes count alike), mean (ranks count alike), or ht.
        supply: where variable chunks come from: storage that all ranks see, or peers; by default storage if it is seen.
        gradients: how gradients travel: exact, bf16, or powersgd(rank=2).
    """

    repartition_every: int = 30
    variable: int = 0
    chunks: int | None = None
    partitioner: str = "metis"
    schedule: str = "cyclic"
    rechunk_every: int = 0
    correction: CorrectionKind = "none"
    hops: int = 1
    shrinkage: float | Literal["auto"] | None = None
    combination: Combination = "self_normalised"
    supply: Literal["auto", "storage", "peers"] = "auto"
    gradients: str = "exact"
    _plan: SweepPlan | None = field(default=None, init=False, repr=False)
    _prepare: Callable[[Tensor], Tensor] = field(default_factory=lambda: _as_stored, init=False, repr=False)
    _isolated: IsolatedGraph | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._reduction = parse_reduction(self.gradients)
        self._correction = Correction(self.correction, self.hops, self.shrinkage or 0.0, self.combination)
        if self.repartition_every < 1:
            raise ConfigError(f"repartition_every should be 1 or more epochs; got {self.repartition_every}.")
        if self.rechunk_every < 0:
            raise ConfigError(f"rechunk_every should be 0 (never) or more sweeps; got {self.rechunk_every}.")
        supplies = ("auto", "storage", "peers")
        if self.supply not in supplies:
            raise ConfigError(unknown_name(self.supply, supplies, family="supply"))

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        self._place(source, communicator, self.partitioner, self.chunks)
        assert self._chunks is not None
        assert self._chunk_map is not None
        self._plan = SweepPlan.of(
            self._chunk_map, communicator, self.variable, self.schedule, self.rechunk_every, self._chunks.open
        )
        return self.placement.shard

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        self._prepare = prepare
        return super().with_features(x, prepare)

    @property
    def intervals(self) -> Intervals:
        return Intervals(self.repartition_every)

    def expect_epochs(self, num_epochs: int) -> None:
        super().expect_epochs(num_epochs)
        assert self._plan is not None, "place comes first"
        if self.placement.communicator.rank == 0:
            self._plan.warn_of_unseen(-(-num_epochs // self.repartition_every), self.repartition_every)

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)
        check_shared(model, shard)
        self._correction.check_model(model)
        if any(getattr(module, "cached", False) for module in model.modules()):
            raise UnsupportedModelError(
                "A convolution with cached=True keeps what it saw first, but with the strategy grappa the rows that it "
                "sees change. Leave cached out: what can be remembered is remembered anyway."
            )

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        placement = self.placement
        assert shard is placement.shard, "the shard comes from `place`"
        assert self._chunks is not None
        assert self._chunk_map is not None
        assert self._plan is not None
        check_only_model(self._gradients is None, placement.communicator)
        # First: it may be refused, and then the model is left as it was.
        sweeper = make_sweeper(
            self._chunks.open,
            self._plan,
            self._chunk_map,
            placement,
            self._prepare,
            self.supply,
            is_in_memory=self._chunks.are_in_memory,
        )
        attachment = self._attach(model, shard, seed, self.gradients, ShardedAggregator(placement))
        self._isolated = IsolatedGraph(attachment, placement, self._correction, sweeper)
        return attachment

    def _enter(self, interval: int, epoch: int) -> None:
        self.isolated.enter(interval, epoch, is_last=self.intervals.is_last(interval, self._num_epochs))

    @property
    def isolated(self) -> IsolatedGraph:
        """What this rank trains on."""
        assert self._isolated is not None, "attach comes first"
        return self._isolated

    @property
    def row_factors(self) -> Tensor | None:
        return None if self._isolated is None else self._isolated.row_factors

    @property
    def draws_batches(self) -> bool:
        # Sampled edges are neither weighted by how often they are held nor divided by the degrees of the whole graph.
        return not self._correction.divides_by_degree

    @property
    def drawn_from(self) -> Shard:
        return self.isolated.shard

    def using_batch(self, batch: Shard) -> AbstractContextManager[Shard]:
        assert self._attachment is not None, "attach comes before the first batch"
        return self._attachment.using(batch, self.isolated.batch_aggregator(batch))

    def take_records(self) -> list[CoverageRecord]:
        return [] if self._isolated is None else self._isolated.take_records()

    def predict_traffic(self, model: nn.Module, epoch: int = 1) -> list[LedgerRecord]:
        if self.placement.communicator.num_ranks == 1:
            return []
        sweeper, reduction = self.isolated.sweeper, self._reduction
        return rehearse(model, self.placement, sweeper, epoch, self.intervals, self._num_epochs, reduction)


def _as_stored(x: Tensor) -> Tensor:
    return x

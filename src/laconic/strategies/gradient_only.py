"""Ranks train in isolation and exchange only gradients (Grappa, arXiv 2602.01872)."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

from torch import Tensor, nn

from laconic.attach import Attachment, attach
from laconic.comm.codecs.identity import Identity
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.gradients.first_weights import copy_from_first
from laconic.gradients.local_steps import LocalSteps
from laconic.gradients.reductions import parse_reduction
from laconic.gradients.shared import SharedGradients
from laconic.graph import Graph, Shard
from laconic.isolated.buffers import combine_buffers, give_back_buffers
from laconic.isolated.correction import Correction, CorrectionKind
from laconic.isolated.factors import Combination
from laconic.isolated.fixed_operators import check_fixed_operators
from laconic.isolated.grounds import Grounds, MovingGrounds, RememberedGrounds, warning_of_old_weights
from laconic.isolated.reaching import check_keeps_sums, why_not_sums
from laconic.isolated.refresh_coder import RefreshCoder, parse_refresh_codec
from laconic.isolated.rehearsal import num_hops_of, rehearse
from laconic.isolated.super_epochs import SuperEpochs
from laconic.isolated.sweeper import Sweeper
from laconic.isolated.sweeping import SweepPlan, make_sweeper
from laconic.isolated.vicinity import Vicinity, find_vicinity
from laconic.launching.agreement import check_agreement
from laconic.records import CoverageRecord, LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.block import BlockMap
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.cut import Cut
from laconic.sharded.placement import Placement, place
from laconic.sharded.rehearsal import rehearse as rehearse_exchange
from laconic.sharded.trial import check_shared
from laconic.store import Store
from laconic.strategies._checks import check_only_model, check_plain_model
from laconic.strategies._chunks import Chunks, chunks_of
from laconic.strategies._gradient_only_settings import check_settings
from laconic.strategies.base import Strategy

logger = logging.getLogger(__name__)


@final
@dataclass(eq=False)
class GradientOnly(Strategy):
    """Each rank trains on what it holds; between steps only gradients travel. Evaluation is exact.

    By default neighbours on other ranks are remembered as they were when the super-epoch began. With `remember=False`
    they are missing, as in the paper: then `variable` chunks of other ranks, which change, and `correction` make up for
    it.

    Args:
        repartition_every: epochs of a super-epoch: how long a rank goes on with what it remembers or holds.
        gradual: the first super-epochs have 1, 2, 4, ... epochs, as weights move fastest then; with remember only. By
            default where rows are kept.
        remember: keep the layer inputs of neighbours on other ranks, from a pass at each super-epoch's start.
        keep: sums, what neighbours aggregated, from which their rows are computed here with today's weights; rows, the
            layer inputs of neighbours, as they were; or auto: sums for models and batches that it can be done for. With
            sums, losses have to be over training nodes: what others get in training may lack neighbours.
        turns: with sums, gradients flow through one in so many rows of neighbours in each step, and count for all; 1:
            through all of them, which for two layers is exact. By default so many that it is at most twice as many as
            the rank has rows; 1 for features far wider than layers.
        reach: with sums, over how many hops rows of other ranks that training nodes see are computed here, the last of
            them from sums that are kept; one less than the model has layers is exact. By default as many as add at
            most twice as many rows as the rank has, and half of those of all others.
        codec: how what is kept is written for the way; identity changes nothing. `laconic.comm.codecs` has them all.
        variable: chunks of other ranks that a rank holds beside its own, other ones in each super-epoch.
        chunks: into how many chunks a graph in memory is cut; one per rank by default. A store has its own number.
        partitioner: cuts a graph that does not come from a store.
        schedule: in which order variable chunks come: cyclic, random, affinity (most edges first), or fixed.
        rechunk_every: sweeps after which chunks are brought together in new, random groups; 0 never.
        correction: of gradients of nodes that miss neighbours: none; node or batch, by coverage; or sweep: edges are
            weighted such that their average over a sweep is exact.
        hops: how far coverage looks.
        shrinkage: how far coverage weights are drawn towards 1: a number from 0 to 1, or auto; by default 0.
        combination: of ranks: self_normalised (nodes count alike), mean (ranks count alike), or ht.
        normalise: by the degrees of the whole graph (whole) or of what is held (held); by default whichever goes with
            the correction.
        supply: where variable chunks come from: storage that all ranks see, or peers; by default storage if it is seen.
        gradients: how gradients travel: exact, bf16, or powersgd(rank=2).
        sync_every: steps that ranks take apart before their parameters are averaged; 1 shares gradients in every step.
            Parameters are averaged before an evaluation and a checkpoint too; the optimizer's moments are not.
        remote: share of the edges from other ranks that mini-batches are drawn from, new ones in each super-epoch.
    """

    repartition_every: int = 30
    gradual: bool | None = None
    remember: bool = True
    keep: Literal["auto", "rows", "sums"] = "auto"
    turns: int | None = None
    reach: int | None = None
    codec: str = "quantize(bits=4, stochastic=False)"
    variable: int = 0
    chunks: int | None = None
    partitioner: str = "metis"
    schedule: str = "cyclic"
    rechunk_every: int = 0
    correction: CorrectionKind = "none"
    hops: int = 1
    shrinkage: float | Literal["auto"] | None = None
    combination: Combination = "self_normalised"
    normalise: Literal["auto", "held", "whole"] = "auto"
    supply: Literal["auto", "storage", "peers"] = "auto"
    gradients: str = "exact"
    sync_every: int = 1
    remote: float = 1.0
    _chunks: Chunks | None = field(default=None, init=False, repr=False)
    _placement: Placement | None = field(default=None, init=False, repr=False)
    _prepare: Callable[[Tensor], Tensor] = field(default_factory=lambda: _as_stored, init=False, repr=False)
    _attachment: Attachment | None = field(default=None, init=False, repr=False)
    _gradients: SharedGradients | None = field(default=None, init=False, repr=False)
    _local_steps: LocalSteps | None = field(default=None, init=False, repr=False)
    _is_step_open: bool = field(default=False, init=False, repr=False)
    _coder: RefreshCoder | None = field(default=None, init=False, repr=False)
    _grounds: Grounds | None = field(default=None, init=False, repr=False)
    _num_epochs: int | None = field(default=None, init=False, repr=False)
    _takes_batches: bool = field(default=False, init=False, repr=False)
    _super_epoch: int | None = field(default=None, init=False, repr=False)
    _own_buffers: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._reduction = parse_reduction(self.gradients)
        self._codec = parse_refresh_codec(self.codec)
        self._correction = Correction(self.correction, self.hops, self.shrinkage or 0.0, self.combination)
        check_settings(self)

    def place(self, source: Graph | Store, communicator: Communicator) -> Shard:
        self._chunks = chunks_of(source, communicator, partitioner=self.partitioner, num_chunks=self.chunks)
        self._chunk_map = ChunkMap.even(self._chunks.num_nodes, communicator.num_ranks)
        self._plan = SweepPlan.of(
            self._chunk_map, communicator, self.variable, self.schedule, self.rechunk_every, self._chunks.open
        )
        self._placement = place(self._chunks.open, BlockMap.one_axis(self._chunk_map), communicator)
        if self.remember and not isinstance(self._codec, Identity) and communicator.num_ranks > 1:
            check_agreement(communicator, {"codec": self.codec})
        return self._placement.shard

    def with_features(self, x: Tensor, prepare: Callable[[Tensor], Tensor]) -> Shard:
        placement = self._placed
        self._placement = replace(placement, shard=replace(placement.shard, x=x))
        self._prepare = prepare
        return self._placement.shard

    @property
    def super_epochs(self) -> SuperEpochs:
        """When super-epochs begin."""
        keeps_rows = isinstance(self._grounds, RememberedGrounds) and self._grounds.vicinity is None
        is_gradual = keeps_rows if self.gradual is None else self.remember and self.gradual
        return SuperEpochs(self.repartition_every, is_gradual)

    @property
    def num_train(self) -> int:
        return self._placed.num_train

    def expect_epochs(self, num_epochs: int) -> None:
        self._num_epochs = num_epochs
        if not self.remember and self._placed.communicator.rank == 0:
            self._plan.warn_of_unseen(-(-num_epochs // self.repartition_every), self.repartition_every)

    def expect_batches(self) -> None:
        self._takes_batches = True

    def check(self, model: nn.Module, shard: Shard) -> None:
        check_plain_model(model, shard)
        check_shared(model, shard)
        if self.correction == "sweep" or self.normalise == "whole":
            check_fixed_operators(model)
        if self._asks_for_sums:
            check_keeps_sums(model)
        if not self.remember and any(getattr(module, "cached", False) for module in model.modules()):
            raise UnsupportedModelError(
                "A convolution with cached=True keeps what it saw first, but with remember=False the rows that it sees "
                "change. Leave cached out: what can be remembered is remembered anyway."
            )

    def attach(self, model: nn.Module, shard: Shard, *, seed: int) -> Attachment:
        placement, communicator = self._placed, self._placed.communicator
        assert shard is placement.shard, "the shard comes from `place`"
        check_only_model(self._gradients is None, communicator)
        # First: it may be refused, and then the model is left as it was.
        sweeper = None if self.remember else self._make_sweeper()
        vicinity = self._find_vicinity(model) if self.remember else None
        copy_from_first(model, communicator)
        self._gradients = SharedGradients(model, communicator, reduction=self._reduction, loss_phase="gradients")
        if self.sync_every > 1:
            share = len(shard.train_rows) / placement.num_train
            self._local_steps = LocalSteps(model, communicator, every=self.sync_every, share=share)
        exact = ShardedAggregator(
            placement, known_halo_features=lambda: self._grounds.halo_features if self._grounds else None
        )
        self._attachment = attach(model, shard, seed=seed, aggregator=exact)
        if sweeper is None:
            if not isinstance(self._codec, Identity) and communicator.num_ranks > 1:
                kept = placement if vicinity is None else vicinity.placement
                self._coder = RefreshCoder(kept, self._codec, Cut.of(kept).fetched, seed)
            self._grounds = RememberedGrounds(
                self._attachment,
                placement,
                self._correction,
                self._coder,
                remote=self.remote,
                vicinity=vicinity,
                num_turns=self.turns,
            )
        else:
            is_global = self.correction == "sweep" or self.normalise == "whole"
            self._grounds = MovingGrounds(self._attachment, placement, self._correction, sweeper, is_global=is_global)
        self._attachment.call_before_evaluation(lambda: self._settle("repartition"))
        self._attachment.call_before_training(self._end_step)
        if communicator.num_ranks > 1:
            self._attachment.call_before_gradients((self._local_steps or self._gradients).shared_pass.check)
            if self.remember and communicator.rank == 0:
                self._attachment.call_on_changed_rows(warning_of_old_weights())
        return self._attachment

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        assert self._attachment is not None, "attach comes before the first epoch"
        assert self._grounds is not None
        super_epoch = self.super_epochs.number(epoch)
        if super_epoch != self._super_epoch:
            is_last = self._num_epochs is not None and self.super_epochs.first_epoch(super_epoch + 1) > self._num_epochs
            if self._coder is not None:
                self._coder.start_epoch(self.super_epochs.first_epoch(super_epoch))
            self._grounds.enter(super_epoch, epoch, is_last=is_last)
            self._super_epoch = super_epoch
        self._grounds.start_epoch(epoch)
        self._attachment.start_epoch(epoch, step)
        return self._attachment.shard

    @property
    def row_factors(self) -> Tensor | None:
        return None if self._grounds is None else self._grounds.row_factors

    @property
    def draws_batches(self) -> bool:
        # Sampled edges are neither weighted by how often they are held nor divided by the degrees of the whole graph.
        # Nor are halo rows of a batch computed.
        return self.correction != "sweep" and self.normalise != "whole" and not self._asks_for_sums

    @property
    def drawn_from(self) -> Shard:
        assert self._grounds is not None, "attach comes before the first epoch"
        return self._grounds.drawn_from

    def using_batch(self, batch: Shard) -> AbstractContextManager[Shard]:
        assert self._attachment is not None, "attach comes before the first batch"
        assert self._grounds is not None
        assert not (isinstance(self._grounds, RememberedGrounds) and self._grounds.vicinity), "expect_batches first"
        return self._attachment.using(batch, self._grounds.batch_aggregator(batch))

    def share_loss(self, total: Tensor, weight: float | None = None) -> Tensor:
        assert self._gradients is not None, "attach comes before the first loss"
        if self._local_steps is None:
            return self._gradients.share(total, weight)
        self._end_step()
        # A loss without gradients, as of a validation, is no step.
        self._is_step_open = total.requires_grad
        return self._local_steps.share(total, weight)

    @property
    def steps_apart(self) -> bool:
        return self._local_steps is not None

    def agree(self, value: float) -> float:
        return value if self._local_steps is None else self._local_steps.mean(value)

    @contextmanager
    def settled(self) -> Iterator[None]:
        self._own_buffers = self._settle("checkpoint")
        try:
            yield
        finally:
            # A checkpoint leaves no trace in the run that goes on: one that is taken up from it does the same.
            give_back_buffers(self._model, self._own_buffers, self._placed.communicator.rank)
            self._own_buffers = None

    def _settle(self, phase: str) -> Tensor:
        """Makes equal what ranks hold apart of the model; returns the running statistics that each had before."""
        placement = self._placed
        self._end_step()
        if self._local_steps is not None:
            self._local_steps.synchronise()
        with placement.communicator.ledger.phase(phase):
            return combine_buffers(self._model, placement.shard.num_rows, placement.communicator)

    @property
    def _model(self) -> nn.Module:
        assert self._attachment is not None, "attach comes first"
        return self._attachment.model

    def _end_step(self) -> None:
        """Told late, when the next forward pass begins: nobody says when the optimizer has moved.

        Not later: parameters that change after it are not those that the backward pass needs.
        """
        if self._local_steps is not None and self._is_step_open:
            self._local_steps.end_step()
        self._is_step_open = False

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes the run up anew: what a super-epoch holds follows from its number."""
        self._super_epoch = None

    def tensors(self) -> dict[str, Tensor]:
        assert self._grounds is not None, "attach comes before a checkpoint"
        assert self._gradients is not None
        parts = {"grounds": self._grounds.tensors(), "gradients": self._gradients.reducer.state()}
        if self._own_buffers is not None and len(self._own_buffers):
            parts["buffers"] = {"of_ranks": self._own_buffers}
        return {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        assert self._grounds is not None, "attach comes before a checkpoint is loaded"
        assert self._gradients is not None
        parts: dict[str, dict[str, Tensor]] = {"grounds": {}, "gradients": {}, "buffers": {}}
        for key, value in tensors.items():
            part, name = key.split(".", 1)
            parts[part][name] = value
        if self._local_steps is not None:
            logger.warning(
                "With sync_every=%s each rank's optimizer had moments of its own, and the checkpoint holds those of "
                "rank 0: the run goes on from it, but not as if it had never stopped.",
                self.sync_every,
            )
        self._grounds.load_tensors(parts["grounds"])
        self._gradients.reducer.load_state(parts["gradients"])
        of_ranks, communicator = parts["buffers"].get("of_ranks"), self._placed.communicator
        # On another number of ranks nobody takes up where one of them was: what the model has is of all of them.
        if of_ranks is not None and len(of_ranks) == communicator.num_ranks:
            give_back_buffers(self._model, of_ranks, communicator.rank)

    def take_records(self) -> list[CoverageRecord]:
        return [] if self._grounds is None else self._grounds.take_records()

    def predict_traffic(self, model: nn.Module, epoch: int = 1) -> list[LedgerRecord]:
        if self._local_steps is not None:
            raise ConfigError(
                "What an epoch costs depends on where it lies between two averages of the parameters, so that "
                "sync_every is not predicted epoch by epoch. Set sync_every=1."
            )
        return rehearse(
            model, self._placed, self._grounds, self._coder, epoch, self.super_epochs, self._num_epochs, self._reduction
        )

    def exact_traffic(self, model: nn.Module) -> list[LedgerRecord]:
        return rehearse_exchange(model, self._placed)

    @property
    def _asks_for_sums(self) -> bool:
        # Turns and reach are for nothing else: a model that keeps rows would leave them out of account.
        return self.keep == "sums" or self.turns is not None or self.reach is not None

    def _find_vicinity(self, model: nn.Module) -> Vicinity | None:
        """Returns what is computed here in training where sums are kept; None where rows are."""
        placement = self._placed
        if self.keep == "rows":
            return None
        reason = None
        if not self._asks_for_sums:
            reason = "mini-batches are drawn" if self._takes_batches else why_not_sums(model)
        vicinity = None
        if reason is None:
            vicinity = find_vicinity(placement, num_hops_of(model, placement), self.reach)
        if placement.communicator.rank == 0 and placement.communicator.num_ranks > 1:
            logger.info("%s.", vicinity or f"Of neighbours on other ranks, rows are kept (keep=rows): {reason}")
        return vicinity

    def _make_sweeper(self) -> Sweeper:
        assert self._chunks is not None, "place comes first"
        return make_sweeper(
            self._chunks.open,
            self._plan,
            self._chunk_map,
            self._placed,
            self._prepare,
            self.supply,
            is_in_memory=self._chunks.are_in_memory,
        )

    @property
    def _placed(self) -> Placement:
        assert self._placement is not None, "place comes first"
        return self._placement


def _as_stored(x: Tensor) -> Tensor:
    return x

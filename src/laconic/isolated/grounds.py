"""Grounds: what a rank trains on in a super-epoch, and what the losses of its rows count there.

RememberedGrounds: its own rows, and its neighbours' as they were when the super-epoch began.
MovingGrounds: its own chunks and variable ones; what lies beyond is missing.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from laconic.attach import Attachment
from laconic.attach.aggregator import Aggregator, LocalAggregator
from laconic.attach.forward import run_model
from laconic.attach.scope import StandIn
from laconic.errors import ConfigError
from laconic.graph import Shard
from laconic.isolated.batch import RememberingBatchAggregator, with_halo_rows
from laconic.isolated.correction import Correction
from laconic.isolated.coverage import CoverageSummary
from laconic.isolated.reaching import ReachingAggregator
from laconic.isolated.remembering import RememberingAggregator
from laconic.isolated.stage import RowCoder
from laconic.isolated.sweeper import Sweeper
from laconic.isolated.vicinity import Vicinity
from laconic.records import CoverageRecord
from laconic.sharded.placement import Placement

logger = logging.getLogger(__name__)

# Beside the names of a model's tensors, none of which begins with a point.
_SUPER_EPOCH = ".super_epoch"


class Grounds(ABC):
    """What a rank trains on; all ranks call every method together."""

    correction: Correction
    shard: Shard
    row_factors: Tensor | None

    @property
    @abstractmethod
    def drawn_from(self) -> Shard:
        """What mini-batches are drawn from: the rank's own rows first."""

    @abstractmethod
    def batch_aggregator(self, batch: Shard) -> Aggregator:
        """Returns the aggregations of a mini-batch that was drawn from `drawn_from`."""

    @abstractmethod
    def enter(self, super_epoch: int, epoch: int, *, is_last: bool) -> None:
        """Moves on to `super_epoch` (the first is 0), at its epoch `epoch`.

        Args:
            is_last: nothing need be made ready for the one after it.
        """

    def start_epoch(self, epoch: int) -> None:  # noqa: B027
        """Called before each epoch's first step, after `enter` where a super-epoch begins."""

    @property
    def halo_features(self) -> Tensor | None:
        """Features of the rows that an evaluation needs of others, if they are here: they need not come again."""
        return None

    def tensors(self) -> dict[str, Tensor]:
        """Returns what a checkpoint has to hold of it, the same on all ranks."""
        return {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:  # noqa: B027
        """Takes back what `tensors` gave."""

    def take_records(self) -> list[CoverageRecord]:
        """Returns rows on coverage that were not taken yet."""
        return []


@final
class RememberedGrounds(Grounds):
    """A rank's own rows; neighbours on other ranks stand as they were at the last refresh.

    Args:
        coder: the ways of what a refresh sends; without one, rows go as they are.
        remote: share of the edges from other ranks that mini-batches are drawn from.
        vicinity: keep what neighbours summed up, and compute these rows here; without it, rows are kept.
        num_turns: groups of rows that are computed, see ReachingAggregator.
    """

    def __init__(
        self,
        attachment: Attachment,
        placement: Placement,
        correction: Correction,
        coder: RowCoder | None = None,
        *,
        remote: float = 1.0,
        vicinity: Vicinity | None = None,
        num_turns: int | None = None,
    ) -> None:
        self._attachment = attachment
        self._remote = remote
        self._super_epoch = 0
        self._drawn_from: Shard | None = None
        self.correction = correction
        self.vicinity = vicinity
        # Whose halo rows a refresh brings.
        self.placement = placement if vicinity is None else vicinity.placement
        self.aggregator: RememberingAggregator = (
            RememberingAggregator(placement, coder)
            if vicinity is None
            else ReachingAggregator(vicinity.placement, coder, num_turns, reach=vicinity.reach)
        )
        self.shard = placement.shard
        self.row_factors = None
        self._refreshed_with: dict[str, Tensor] = {}
        self._restored: dict[str, Tensor] | None = None
        # How often the features had been changed in place when others took copies of them: with rows that are taken in
        # before the model was attached, otherwise in the first refresh.
        self._copied_version = None if self.evaluates_same_halo else self.shard.x._version

    def enter(self, super_epoch: int, epoch: int, *, is_last: bool) -> None:
        model = self._attachment.model
        restored = self._restored
        if restored is not None and int(restored.pop(_SUPER_EPOCH)) == super_epoch:
            # Taken up within a super-epoch: what is remembered was made with the weights that it began with.
            now = _copied(model)
            model.load_state_dict(restored)
            self.refresh()
            model.load_state_dict(now)
        else:
            self.refresh()
        self._restored = None
        if self.correction.combination != "self_normalised" and self.row_factors is None:
            self.row_factors = self._factors()
        self._super_epoch, self._drawn_from = super_epoch, None

    def start_epoch(self, epoch: int) -> None:
        self._check_features()
        shard = self.aggregator.take_turn(epoch)
        self._attachment.train_on(StandIn(shard, self.aggregator, lambda: self.aggregator.run_ahead(self._run_on)))

    def _run_on(self, shard: Shard) -> None:
        model = self._attachment.model
        before = [(buffer, buffer.clone()) for buffer in model.buffers()]
        try:
            with self._attachment.ahead_of_step(shard, self.aggregator):
                run_model(model, shard)
        finally:
            # How many passes there are differs between ranks: what a model counts of itself must not.
            for buffer, value in before:
                buffer.copy_(value)

    @property
    def drawn_from(self) -> Shard:
        if self._drawn_from is None:
            key = (self.placement.communicator.rank, self._super_epoch)
            self._drawn_from = with_halo_rows(self.shard, self.aggregator.halo_features, share=self._remote, key=key)
        return self._drawn_from

    def batch_aggregator(self, batch: Shard) -> Aggregator:
        return RememberingBatchAggregator(batch, self.shard.halo_ids, self.aggregator.kept, self.aggregator.halo_scale)

    @property
    def halo_features(self) -> Tensor | None:
        if not self.evaluates_same_halo:
            return None
        self._check_features()
        return self.aggregator.known_halo_features

    @property
    def evaluates_same_halo(self) -> bool:
        """Whether a refresh brings the halo rows that an evaluation needs: no rows of others were taken in."""
        return self.placement.shard is self.shard

    def _check_features(self) -> None:
        # Not taken anew: other ranks may have changed nothing, and would not take part.
        if self._copied_version not in (None, self.shard.x._version):
            raise ConfigError(
                "The features were changed in place after other ranks had taken copies of them, and training would go "
                "on with what they were. Change them before the model is attached."
            )

    def refresh(self) -> None:
        """Runs the model once over the whole graph and keeps what ranks get of each other."""
        model = self._attachment.model
        if self.aggregator.needs_refresh:
            self._check_features()
            self._copied_version = self.shard.x._version
            self._run(model)
        self._refreshed_with = _copied(model)

    def _run(self, model: nn.Module) -> None:
        was_training, shard = model.training, self.aggregator.trained_on
        model.eval()
        try:
            with torch.no_grad(), self._attachment.using(shard, self.aggregator), self.aggregator.refreshing():
                run_model(model, shard)
            model.train()
            with torch.no_grad():
                self.aggregator.after_refresh(self._run_on)
        finally:
            model.train(was_training)

    def tensors(self) -> dict[str, Tensor]:
        return {**self._refreshed_with, _SUPER_EPOCH: torch.tensor(self._super_epoch)} if self._refreshed_with else {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self._restored = dict(tensors) or None

    def _factors(self) -> Tensor:
        """Returns what the loss of each own training row counts, in every super-epoch: ranks count alike."""
        communicator = self.placement.communicator
        with communicator.ledger.phase("setup"):
            counts = communicator.all_gather(torch.tensor([len(self.shard.train_rows)])).flatten()
        num_own, num_ranks = len(self.shard.train_rows), int((counts > 0).sum())
        return torch.full((num_own,), 1.0 / (num_ranks * max(num_own, 1)), dtype=torch.float64)


@final
class MovingGrounds(Grounds):
    """A rank's own chunks and, super-epoch by super-epoch, other variable ones.

    Args:
        is_global: divide by the degrees of the whole graph, not by the number of neighbours that are there.
    """

    def __init__(
        self,
        attachment: Attachment,
        placement: Placement,
        correction: Correction,
        sweeper: Sweeper,
        *,
        is_global: bool,
    ) -> None:
        self._attachment = attachment
        self._placement = placement
        self.correction = correction
        self.sweeper = sweeper
        self._is_global = is_global
        self.shard = placement.shard
        self.row_factors = None
        self._records: list[CoverageRecord] = []

    def enter(self, super_epoch: int, epoch: int, *, is_last: bool) -> None:
        communicator = self._placement.communicator
        view = self.sweeper.view(super_epoch)
        with communicator.ledger.phase("repartition"):
            self.row_factors, coverage = self.correction.apply(view, communicator)
        self._records.append(_as_record(coverage, epoch))
        if self._is_global:
            sweep, _ = self.sweeper.sweep_of(super_epoch)
            weights = sweep.edge_weight_of_held_row(communicator.rank) if self.correction.kind == "sweep" else None
            aggregator = LocalAggregator(
                view.shard,
                remember_inputs=True,
                degrees=view.degrees,
                factors=None if weights is None else view.factors(weights),
            )
        else:
            aggregator = LocalAggregator(view.shard, remember_inputs=True)
        self.shard = view.shard
        self._attachment.train_on(StandIn(view.shard, aggregator))
        if not is_last:
            self.sweeper.start(super_epoch + 1)

    @property
    def drawn_from(self) -> Shard:
        return self.shard

    def batch_aggregator(self, batch: Shard) -> Aggregator:
        return LocalAggregator(batch, remember_inputs=False)

    def take_records(self) -> list[CoverageRecord]:
        taken, self._records = self._records, []
        return taken


def warning_of_old_weights() -> Callable[[object], None]:
    """Returns what to call with a convolution that changes rows before it hands them on; it warns once of each kind."""
    told: set[str] = set()

    def warn(conv: object) -> None:
        name = type(conv).__name__
        if name in told:
            return
        told.add(name)
        logger.warning(
            "%s has no kernel and changes rows before it hands them on, as by a Linear: what is remembered of other "
            "ranks' rows was made with the weights of the last refresh, and it learns less well. Use a convolution "
            "that multiplies after it has summed, repartition more often, or use the strategy exchange.",
            name,
        )

    return warn


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _as_record(coverage: CoverageSummary, epoch: int) -> CoverageRecord:
    return CoverageRecord(
        epoch=epoch,
        mean=coverage.mean,
        minimum=coverage.minimum,
        effective_sample_size=coverage.effective_sample_size,
        histogram=list(coverage.histogram),
    )

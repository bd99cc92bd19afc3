"""What an epoch with historical neighbours will cost, known before it: gradients, an evaluation, a refresh.

    epoch 1                  first refresh + step and evaluation, with what the evaluation has once
    epoch with a refresh     later refresh + step and evaluation: constants have come
    any other epoch          step and evaluation

Each of these is played once, on three rows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from torch import Tensor, nn

from laconic.cached.intervals import Intervals
from laconic.cached.neighbour_cache import NeighbourCache
from laconic.cached.refresh_coder import RefreshCoder
from laconic.comm.ledger import Ledger, merged
from laconic.gradients.reductions import GradientReduction
from laconic.gradients.running_statistics import combine_buffers
from laconic.gradients.shared import SharedGradients
from laconic.records import LedgerRecord
from laconic.sharded.miniature import NotingCoder, miniature_of
from laconic.sharded.placement import Placement
from laconic.sharded.trace import Rehearsal, Trace, rehearsing


@final
@dataclass(frozen=True)
class RefreshTrace:
    """What this rank will send and receive, as its ledger will count it.

    An evaluation before the first epoch is not in it: features travel for it that no refresh has brought yet.

    Args:
        first: records of the first refresh, which brings constants too.
        later: records of every other refresh.
        epoch: of a step and an evaluation after a refresh.
    """

    first: list[LedgerRecord]
    later: list[LedgerRecord]
    epoch: Trace

    def records(self, epoch: int, intervals: Intervals) -> list[LedgerRecord]:
        """Returns the traffic of an epoch; rows of epoch 0 are what the first epoch has alone.

        Args:
            intervals: in which epochs the cache is refreshed.
        """
        if epoch == 1:
            return [*self.epoch.once, *merged([*self.first, *self.epoch.each])]
        refresh = self.later if intervals.begins_with(epoch) else []
        return [replace(row, epoch=epoch) for row in merged([*refresh, *self.epoch.each])]


def trace_refreshes(
    model: nn.Module,
    placement: Placement,
    cache: NeighbourCache,
    coder: RefreshCoder | None,
    reduction: GradientReduction,
) -> RefreshTrace:
    """Plays two refreshes, and a step and an evaluation after the first, on three rows.

    Args:
        model: attached or not; it is copied and stays as it is.
        coder: the ways of a refresh, if its rows are coded.
        reduction: how gradients travel.
    """
    played: list[NeighbourCache] = []

    def halo_features() -> Tensor | None:
        return played[0].halo_features if played and cache.evaluates_same_halo else None

    with rehearsing_apart(model, placement, reduction, halo_features) as rehearsal:
        # Other rows travel in a refresh than in an evaluation.
        few = miniature_of(cache.placement)
        noting = NotingCoder(few.communicator.ledger)
        ways, halo = None if coder is None else noting, replace(cache.halo, placement=few)
        player = NeighbourCache(rehearsal.attachment, few, ways, halo=halo, keeps_sums=cache.keeps_sums)
        played.append(player)

        def refresh(interval: int) -> list[LedgerRecord]:
            player.enter(interval)
            coded = Ledger(few.communicator.rank)
            if coder is not None:
                coder.count(noting.exchanges, coded)
            noting.exchanges.clear()
            communicators = (few.communicator, rehearsal.miniature.communicator)
            return [row for ledger in (*(each.ledger for each in communicators), coded) for row in ledger.take(1)]

        first = refresh(0)
        player.start_epoch(1)
        epoch = rehearsal.run()
        return RefreshTrace(first, refresh(1), epoch)


@contextmanager
def rehearsing_apart(
    model: nn.Module,
    placement: Placement,
    reduction: GradientReduction,
    known_halo_features: Callable[[], Tensor | None] | None = None,
) -> Iterator[Rehearsal]:
    """Puts a copy of a model on a miniature, to train apart: norms are put together before evaluations."""
    share = partial(SharedGradients, reduction=reduction, loss_phase="gradients")
    with rehearsing(model, placement, share=share, known_halo_features=known_halo_features) as rehearsal:
        few, actor = rehearsal.miniature, rehearsal.attachment.model

        def settle() -> None:
            with few.communicator.ledger.phase("repartition"):
                combine_buffers(actor, few.shard.num_rows, few.communicator)

        rehearsal.attachment.call_before_evaluation(settle)
        yield rehearsal

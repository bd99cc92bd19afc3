"""CachedWorker: trains on historical neighbours, which are refreshed when an interval begins."""

from contextlib import AbstractContextManager
from functools import cached_property
from typing import final

from torch import Tensor

from laconic.cached.interval_worker import IntervalWorker
from laconic.cached.intervals import Intervals
from laconic.cached.khop_halo import KHopHalo
from laconic.cached.neighbour_cache import NeighbourCache, warning_of_old_weights
from laconic.cached.refresh_coder import RefreshCoder
from laconic.cached.rehearsal import RefreshTrace, trace_refreshes
from laconic.comm.codecs import Codec
from laconic.errors import ConfigError
from laconic.gradients.reductions import GradientReduction
from laconic.graph import Shard
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.cut import Cut
from laconic.sharded.placement import Placement
from laconic.sharded.trace import Traces


@final
class CachedWorker(IntervalWorker):
    """Caches rows, or sums, of neighbours that other ranks own.

    Args:
        placement, reduction, intervals: as in IntervalWorker; the cache is refreshed when an interval begins.
        codec: how a refresh writes what is cached for the way; None: as it is.
        halo, keeps_sums, num_turns, remote: as in NeighbourCache.
    """

    def __init__(
        self,
        traces: Traces,
        placement: Placement,
        seed: int,
        *,
        reduction: GradientReduction,
        intervals: Intervals,
        codec: Codec | None,
        halo: KHopHalo,
        keeps_sums: bool,
        num_turns: int | None,
        remote: float,
    ) -> None:
        communicator = placement.communicator
        exact = ShardedAggregator(placement, known_halo_features=lambda: self.cache.halo_features)
        super().__init__(traces, placement, exact, seed, reduction=reduction, intervals=intervals)
        self._coder: RefreshCoder | None = None
        if codec is not None:
            self._coder = RefreshCoder(halo.placement, codec, Cut.of(halo.placement).fetched, seed)
        self.cache = NeighbourCache(
            self.attachment,
            placement,
            self._coder,
            remote=remote,
            halo=halo,
            keeps_sums=keeps_sums,
            num_turns=num_turns,
        )
        if communicator.num_ranks > 1 and communicator.rank == 0:
            self.attachment.call_on_changed_rows(warning_of_old_weights())

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        super().start_epoch(epoch, step)
        return self.cache.start_epoch(epoch)

    def _enter(self, interval: int, epoch: int) -> None:
        if self._coder is not None:
            self._coder.start_epoch(self.intervals.first_epoch(interval))
        self.cache.enter(interval)

    def _interval_tensors(self) -> dict[str, Tensor]:
        return self.cache.tensors()

    def _load_interval_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.cache.load_tensors(tensors)

    @property
    def drawn_from(self) -> Shard:
        return self.cache.drawn_from

    def using_batch(self, batch: Shard) -> AbstractContextManager[Shard]:
        if self.cache.keeps_sums:
            raise ConfigError("Mini-batches read rows of neighbours, and here their sums are kept. Use keep=rows.")
        return self.attachment.using(batch, self.cache.batch_aggregator(batch))

    def predict_traffic(self, epoch: int = 1) -> list[LedgerRecord]:
        if self.placement.communicator.num_ranks == 1:
            return []
        return self._trace.records(epoch, self.intervals)

    @cached_property
    def _trace(self) -> RefreshTrace:
        return trace_refreshes(self.model, self.placement, self.cache, self._coder, self._reduction)

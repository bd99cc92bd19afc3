"""NeighbourCache: when the historical neighbours of a rank are refreshed, and which rows its steps run on.

    refresh at the start of interval t:    cache_u = s_u(W_t)       the model over the whole graph, all ranks together
    step i within the interval:            h_u = act(W_i cache_u)   no row travels, W_i are today's weights

`historical.py` caches rows of neighbours, `recomputing.py` sums. Historical embeddings are those of VR-GCN
(arXiv 1710.10568) and GNNAutoScale (arXiv 2106.05609).
"""

import logging
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from laconic.attach import Attachment
from laconic.attach.aggregator import Aggregator
from laconic.attach.forward import run_model
from laconic.cached.batch import HistoricalBatchAggregator
from laconic.cached.historical import HistoricalAggregator
from laconic.cached.khop_halo import KHopHalo, with_halo_rows
from laconic.cached.recomputing import RecomputingAggregator
from laconic.cached.refresh_coder import RowCoder
from laconic.cached.summed_calls import SummedCalls
from laconic.errors import ConfigError
from laconic.graph import Shard
from laconic.sharded.placement import Placement

logger = logging.getLogger(__name__)

# Beside the names of a model's tensors, none of which begins with a point. It is in checkpoints.
_INTERVAL = ".super_epoch"


@final
class NeighbourCache:
    """A rank's own rows; neighbours on other ranks stand as they were at the last refresh.

    All ranks call every method together.

    Args:
        coder: the ways of what a refresh sends; without one, rows go as they are.
        remote: share of the edges from other ranks that mini-batches are drawn from.
        halo: rows of others that are computed here.
        keeps_sums: cache sums of the halo's rows, and compute these rows here too; otherwise rows are cached.
        num_turns: groups of rows that are computed from sums, see RecomputingAggregator.
    """

    def __init__(
        self,
        attachment: Attachment,
        placement: Placement,
        coder: RowCoder | None = None,
        *,
        remote: float = 1.0,
        halo: KHopHalo,
        keeps_sums: bool = False,
        num_turns: int | None = None,
    ) -> None:
        self._attachment = attachment
        self._remote = remote
        self._interval = 0
        self._drawn_from: Shard | None = None
        self.keeps_sums = keeps_sums
        self.halo = halo
        # Whose halo rows a refresh brings.
        self.placement = self.halo.placement
        self.aggregator: HistoricalAggregator = (
            RecomputingAggregator(self.placement, self._trace, self._run_on, coder, num_turns, reach=self.halo.reach)
            if keeps_sums
            else HistoricalAggregator(self.placement, coder)
        )
        self.shard = placement.shard
        self._refreshed_with: dict[str, Tensor] = {}
        self._restored: dict[str, Tensor] | None = None
        # How often the features had been changed in place when others took copies of them: with rows that are computed
        # here before the model was attached, otherwise in the first refresh.
        self._copied_version = None if self.evaluates_same_halo else self.shard.x._version

    def enter(self, interval: int) -> None:
        """Moves on to a refresh interval (the first is 0): refreshes the cache."""
        model = self._attachment.model
        restored = self._restored
        if restored is not None and int(restored.pop(_INTERVAL)) == interval:
            # Taken up within an interval: the cache was made with the weights that the interval began with.
            now = _copied(model)
            model.load_state_dict(restored)
            self.refresh()
            model.load_state_dict(now)
        else:
            self.refresh()
        self._restored = None
        self._interval, self._drawn_from = interval, None

    def start_epoch(self, epoch: int) -> Shard:
        """Returns the rows to train on in an epoch; called after `enter` where an interval begins."""
        self._check_features()
        return self._attachment.train_on(self.aggregator.take_turn(epoch), self.aggregator)

    def _trace(self) -> SummedCalls:
        return SummedCalls.of(self._attachment.model, self.placement)

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
        """What mini-batches are drawn from: the rank's own rows first."""
        if self._drawn_from is None:
            key = (self.placement.communicator.rank, self._interval)
            self._drawn_from = with_halo_rows(self.shard, self.aggregator.halo_features, share=self._remote, key=key)
        return self._drawn_from

    def batch_aggregator(self, batch: Shard) -> Aggregator:
        """Returns the aggregations of a mini-batch that was drawn from `drawn_from`."""
        return HistoricalBatchAggregator(batch, self.shard.halo_ids, self.aggregator.kept, self.aggregator.halo_scale)

    @property
    def halo_features(self) -> Tensor | None:
        """Features of the rows that an evaluation needs of others, if they are here: they need not come again."""
        if not self.evaluates_same_halo:
            return None
        self._check_features()
        return self.aggregator.known_halo_features

    @property
    def evaluates_same_halo(self) -> bool:
        """Whether a refresh brings the halo rows that an evaluation needs: no rows of others are owned here too."""
        return self.placement.shard is self.shard

    def _check_features(self) -> None:
        # Not taken anew: other ranks may have changed nothing, and would not take part.
        if self._copied_version not in (None, self.shard.x._version):
            raise ConfigError(
                "The features were changed in place after other ranks had taken copies of them, and training would go "
                "on with what they were. Change them before the model is attached."
            )

    def refresh(self) -> None:
        """Runs the model once over the whole graph and caches what ranks get of each other."""
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
        finally:
            model.train(was_training)

    def tensors(self) -> dict[str, Tensor]:
        """Returns what a checkpoint has to hold of it, the same on all ranks."""
        return {**self._refreshed_with, _INTERVAL: torch.tensor(self._interval)} if self._refreshed_with else {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Takes back what `tensors` gave."""
        self._restored = dict(tensors) or None


def warning_of_old_weights() -> Callable[[object], None]:
    """Returns what to call with a convolution that changes rows before it hands them on; it warns once of each kind."""
    told: set[str] = set()

    def warn(conv: object) -> None:
        name = type(conv).__name__
        if name in told:
            return
        told.add(name)
        logger.warning(
            "%s has no kernel and changes rows before it hands them on, as by a Linear: historical rows of other ranks "
            "were made with the weights of the last refresh, and it learns less well. Use a convolution that "
            "multiplies after it has summed, refresh more often, or use the strategy exchange.",
            name,
        )

    return warn


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}

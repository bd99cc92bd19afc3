"""ReachingAggregator: halo rows are computed here too, with today's weights, from the sums that their owners made.

What a rank lacks of a halo row are its neighbours. So their sum is what is kept of it: its owner's, as it was at the
last refresh. From there on everything is computed here as it is there, with the same weights and the same dropout, and
gradients flow through it. The first layer sums the graph's own features, which never change: its rows are exact, and so
is a model of two layers, gradients included; it needs no refresh.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP, MessagePassing

from laconic.attach.aggregator import Linear
from laconic.attach.norms import is_over_nodes
from laconic.attach.remembered import RememberedInputs
from laconic.errors import UnsupportedModelError
from laconic.graph import Shard
from laconic.halo.coder import Coder
from laconic.halo.placement import Placement
from laconic.isolated.batch import with_halo_rows
from laconic.isolated.fixed_operators import why_not_fixed
from laconic.isolated.remembering import AllIsKeptError, RememberingAggregator

# Shapes: N owned rows, H halo rows


def check_keeps_sums(model: nn.Module) -> None:
    """Raises UnsupportedModelError unless halo rows of `model` can be computed from sums that are kept."""
    for name, module in model.named_modules():
        reason = None
        if isinstance(module, MessagePassing):
            reason = why_not_fixed(module)
            if reason is None and isinstance(module, APPNP) and module.dropout > 0:
                reason = "it drops other edges in every step"
        elif is_over_nodes(module):
            reason = "its statistics would count halo rows as well"
        if reason is not None:
            raise UnsupportedModelError(
                f"{name or 'the model'} is a {type(module).__name__}, of which keep=sums cannot compute halo rows: "
                f"{reason}. Use keep=rows."
            )


@final
class ReachingAggregator(RememberingAggregator):
    """Owned rows and halo rows in, the same out. Only inside `refreshing` do ranks talk; then all call together.

    For models that `check_keeps_sums` lets through.
    """

    def __init__(self, placement: Placement, coder: Coder | None = None) -> None:
        super().__init__(placement, coder)
        self._extended: Shard | None = None
        self._is_refreshed = False

    @property
    def trained_on(self) -> Shard:
        """The rank's own rows, and behind them the halo's, (N + H). All ranks ask together for the first time."""
        if self._extended is None:
            self._extended = with_halo_rows(self._shard, self.halo_features, share=1.0, key=())
            self._constants = RememberedInputs(self._extended.x, num_rows=self._placement.largest_num_rows)
        return self._extended

    @property
    def num_nodes(self) -> int:
        return self.trained_on.num_rows

    @property
    def needs_refresh(self) -> bool:
        # Of the last sum that changes, halo rows are seen by nobody: there have to be others.
        return not self._is_refreshed or len(self._kept) > 1

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        with super().refreshing():
            yield
        self._is_refreshed = True
        if self._kept:
            # What the last convolution makes of halo rows nobody sees; which one it is, the first pass shows.
            self._kept[-1] = torch.zeros_like(self._kept[-1])

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        if self.is_remembered(x):
            return self._constants.recall(aggregation, x, lambda rows: self._with_exact_halo(aggregation, rows))
        number, self._next = self._next, self._next + 1
        own, halo = self._parts(x)
        if self._is_refreshing and number == self._last_call:
            self._kept.append(torch.zeros_like(halo))
            raise AllIsKeptError
        operator = self._operator(aggregation)
        sums = operator.local @ own + operator.remote @ halo
        if self._is_refreshing:
            with self._booked():
                way = self._exchange if self._coder is None else self._coder.route(self._layer)
                self._kept.append(way.start(sums).wait())
        return torch.cat([sums, self._kept[number].to(x.dtype)])

    def _with_exact_halo(self, aggregation: Linear, x: Tensor) -> Tensor:
        """Returns the sums of constant rows: the halo's come from their owners, once, as they are."""
        operator, (own, halo) = self._operator(aggregation), self._parts(x)
        sums = operator.local.multiply(own).add_(operator.remote.multiply(halo))
        with self._booked():
            return torch.cat([sums, self._exchange.start(sums).wait()])

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        num_owned = self._shard.num_rows
        # Split, not sliced: backward, both gradients are put together once.
        own, halo = x.split_with_sizes([num_owned, len(x) - num_owned])
        return own, halo

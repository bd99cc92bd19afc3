"""ReachingAggregator: halo rows are computed here too, with today's weights, from the sums that their owners made.

What a rank lacks of a halo row are its neighbours. So their sum is what is kept of it: its owner's, as it was at the
last refresh. From there on everything is computed here as it is there, with the same weights and the same dropout, and
gradients flow through it. The first layer sums the graph's own features, which never change: its rows are exact, and so
is a model of two layers, gradients included; it needs no refresh.

Halo rows that no training row sees, over as many hops as the model has layers, are not computed: the loss does not
depend on them. Where the others are many they take turns, which bounds time and memory: a step computes one group of
them, whose gradients count for all groups, and the others stand as they were at the last refresh. Which group it is
follows from the epoch alone: a run that is taken up goes on as if it had never stopped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from laconic.isolated.remembering import AllIsKeptError, RememberingAggregator, plus_constant
from laconic.isolated.turns import TurnOperator, Turns, halo_seen, turns_for

# Shapes: N owned rows, H halo rows, G halo rows of a turn


def why_not_sums(model: nn.Module) -> str | None:
    """Returns which module's halo rows cannot be computed from sums that are kept, and why; None if all can."""
    for name, module in model.named_modules():
        reason = None
        if isinstance(module, MessagePassing):
            reason = why_not_fixed(module)
            if reason is None and isinstance(module, APPNP) and module.dropout > 0:
                reason = "it drops other edges in every step"
        elif is_over_nodes(module):
            reason = "its statistics would count halo rows as well"
        if reason is not None:
            return f"{name or 'the model'} is a {type(module).__name__}, and {reason}"
    return None


def check_keeps_sums(model: nn.Module) -> None:
    """Raises UnsupportedModelError unless halo rows of `model` can be computed from sums that are kept."""
    reason = why_not_sums(model)
    if reason is not None:
        raise UnsupportedModelError(
            f"keep=sums, and turns with it, cannot compute halo rows: {reason}. Use keep=rows, or leave both out."
        )


@final
class ReachingAggregator(RememberingAggregator):
    """Owned rows and halo rows in, the same out. Only inside `refreshing` do ranks talk; then all call together.

    For models that `check_keeps_sums` lets through.

    Args:
        coder: as for RememberingAggregator.
        num_turns: groups of halo rows, one of which a step computes; 1 computes all of them. By default `turns_for`.
    """

    def __init__(self, placement: Placement, coder: Coder | None = None, num_turns: int | None = None) -> None:
        super().__init__(placement, coder)
        self._num_turns_given = num_turns
        # Known once a pass has shown how many hops the model sees.
        self._turns: Turns | None = None
        self._turn = 0
        self._of_turn: Shard | None = None
        # Of the turn under way: what was made of constants, with the constant that it is a part of.
        self._parts_of_constants: dict[int, tuple[Tensor, Tensor]] = {}
        self._extended: Shard | None = None
        # What each call of a pass was given of halo rows at the last refresh, where some of them stand still.
        self._rows: list[Tensor] = []
        self._of_turns: dict[tuple[Linear, int], TurnOperator] = {}

    @property
    def trained_on(self) -> Shard:
        """The rank's own rows, and behind them the halo's, (N + H). All ranks ask together for the first time."""
        if self._extended is None:
            self._extended = with_halo_rows(self._shard, self.halo_features, share=1.0, key=())
            self._constants = RememberedInputs(self._extended.x, num_rows=self._placement.largest_num_rows)
        return self._extended

    def take_turn(self, epoch: int) -> Shard:
        assert self._turns is not None, "a refresh comes before the first step"
        turn = epoch % self._turns.num_turns
        if self._of_turn is None or turn != self._turn:
            self._turn, self._parts_of_constants = turn, {}
            self._of_turn = self._rows_of_turn()
        return self._of_turn

    def _rows_of_turn(self) -> Shard:
        whole = self.trained_on
        if self._computes_all:
            return whole
        x = self._part_of_constant(whole.x)
        # Behind the rank's own rows there are no labels. Edges are those of all turns: nobody but `linear` knows them.
        return replace(
            whole,
            x=x,
            y=whole.y[: len(x)],
            node_ids=self._groups.rows(whole.node_ids, self._turn),
            train_mask=whole.train_mask[: len(x)],
            val_mask=whole.val_mask[: len(x)],
            test_mask=whole.test_mask[: len(x)],
        )

    @property
    def num_nodes(self) -> int:
        return self.trained_on.num_rows

    @property
    def needs_refresh(self) -> bool:
        # Of the last sum that changes, halo rows are seen by nobody: there have to be others, or rows that stand still.
        return self._turns is None or len(self._kept) > 1 or (self._turns.num_turns > 1 and bool(self._kept))

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        self._rows = []
        with super().refreshing():
            yield
        if self._turns is None:
            self._turns = self._make_turns(num_hops=len(self._kept))
        if self._turns.num_turns == 1:
            self._rows = []
        if self._kept:
            # What the last convolution makes of halo rows nobody sees; which one it is, the first pass shows.
            self._kept[-1] = torch.zeros_like(self._kept[-1])
        self._kept = [self._turns.among(halo) for halo in self._kept]

    def _make_turns(self, num_hops: int) -> Turns:
        shard = self._shard
        seen = halo_seen(shard.adjacency, shard.train_mask.numpy(), num_hops)
        num_seen = len(shard.halo_ids) if seen is None else len(seen)
        return Turns(shard.num_rows, self._num_turns_given or turns_for(shard.num_rows, num_seen), seen)

    @property
    def _groups(self) -> Turns:
        assert self._turns is not None, "a refresh comes before the first step"
        return self._turns

    def is_remembered(self, x: Tensor) -> bool:
        return self._constants.covers(self._constant_of(x))

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        if self.is_remembered(x):
            whole = self._constants.recall(
                aggregation, self._constant_of(x), lambda rows: self._with_exact_halo(aggregation, rows)
            )
            return whole if self._computes_all else self._part_of_constant(whole)
        number, self._next = self._next, self._next + 1
        own, halo = self._parts(x)
        if not self._computes_all:
            kept = self._groups.of_turn(self._kept[number], self._turn)
            return torch.cat([self._sums_in_turn(number, aggregation, own, halo), kept.to(x.dtype)])
        if self._is_refreshing:
            self._rows.append(halo)
            if number == self._last_call:
                self._kept.append(torch.zeros_like(halo))
                raise AllIsKeptError
        operator = self._operator(aggregation)
        sums = operator.local @ own + operator.remote @ halo
        if self._is_refreshing:
            with self._booked():
                way = self._exchange if self._coder is None else self._coder.route(self._layer)
                self._kept.append(way.start(sums).wait())
        return torch.cat([sums, self._kept[number].to(x.dtype)])

    @property
    def _computes_all(self) -> bool:
        """Whether the pass under way computes all halo rows."""
        return self._is_refreshing or self._groups.has_all_in_one

    def _sums_in_turn(self, number: int, aggregation: Linear, own: Tensor, halo: Tensor) -> Tensor:
        """Returns the sums of owned rows, (N, F); right for those that training rows see."""
        operator, groups = self._operator(aggregation), self._groups
        of_turn = self._of_turns.setdefault(
            (aggregation, self._turn), TurnOperator(operator.remote, self._turn, groups)
        )
        if groups.num_turns == 1:
            return operator.local @ own + of_turn.block @ halo
        # Of all halo rows a group has changed since the refresh.
        if number not in self._kept_products:
            before = self._rows[number].to(own.dtype)
            self._kept_products[number] = operator.remote.multiply(before)
            self._rows[number] = groups.among(before)
        change = of_turn.change(halo, groups.of_turn(self._rows[number], self._turn))
        return plus_constant(operator.local @ own, self._kept_products[number]) + change

    def _part_of_constant(self, whole: Tensor) -> Tensor:
        """Returns the rows of this turn of a constant, (N + G, F)."""
        part = self._groups.rows(whole, self._turn)
        self._parts_of_constants[id(part)] = (part, whole)
        return part

    def _constant_of(self, x: Tensor) -> Tensor:
        """Returns the constant that x is a part of, (N + H, F); x itself if it is of none."""
        part, whole = self._parts_of_constants.get(id(x), (None, x))
        return whole if part is x else x

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

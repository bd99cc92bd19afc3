"""RecomputingAggregator: halo rows are computed here, with today's weights, from historical sums.

For a halo row u and a layer h_u = act(W s_u), its owner's sum s_u = sum of a_uw h_w over the neighbours w of u is kept:

    own rows     s(i) = A_local h(i) + A_remote h_halo(i)      h: (N, F), h_halo: (H, F); gradients flow to both
    halo rows    s_halo(i) = s_halo(t), of the last refresh    h_halo(i) = act(W(i) s_halo(t)), with the owner's dropout

In the first layer s_halo sums the graph's own features, which never change: h_halo is exact, and so is a model of two
layers, gradients included; it needs no refresh.

Halo rows that no training row sees, over as many hops as the model sums up what changes, are not computed: the loss
does not depend on them. Where many are left they take turns (`turns.py`): in each step gradients flow through one group
of halo rows, and count for all groups. The rows of the other groups are computed ahead of the step, without gradients,
one group after the other. The epoch alone decides which group has its turn: a run that is taken up goes on as if it had
never stopped.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from typing import final

import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP, MessagePassing

from laconic.attach.aggregator import Linear
from laconic.attach.fixed_operators import why_not_fixed
from laconic.attach.norms import is_over_nodes
from laconic.attach.remembered import RememberedInputs
from laconic.cached.historical import HistoricalAggregator
from laconic.cached.khop_halo import with_halo_rows
from laconic.cached.refresh_coder import RowCoder
from laconic.cached.summed_calls import SummedCalls
from laconic.cached.turns import TurnCopies, Turns, copies_outweigh, halo_seen, multiply_in_turn, turns_for
from laconic.errors import UnsupportedModelError
from laconic.graph import Shard
from laconic.graph.operators.linear import LinearOperator
from laconic.graph.operators.slices import columns_of
from laconic.sharded.placement import Placement

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
            f"keep=sums, and turns and reach with it, cannot compute halo rows: {reason}. Use keep=rows, or leave them "
            f"out."
        )


@final
class RecomputingAggregator(HistoricalAggregator):
    """Owned rows and halo rows in, the same out; ahead of a step halo rows alone. Ranks talk only inside `refreshing`.

    For models that `check_keeps_sums` lets through.

    Args:
        trace: returns the calls of the model as it is now.
        run: runs the model on rows, with this aggregator and the random masks of the step to come.
        coder: as for HistoricalAggregator.
        num_turns: groups of halo rows, one of which a step computes with gradients. By default `turns_for`.
        reach: of the KHopHalo whose placement this is; where it is as far as the model sees, no sum grows old.
    """

    def __init__(
        self,
        placement: Placement,
        trace: Callable[[], SummedCalls],
        run: Callable[[Shard], None],
        coder: RowCoder | None = None,
        num_turns: int | None = None,
        *,
        reach: int = 1,
    ) -> None:
        super().__init__(placement, coder)
        self._trace = trace
        self._run = run
        self._num_turns_given = num_turns
        self._reach = reach
        # Of the model as it is in the first refresh, which also shows how wide layers are.
        self._calls = SummedCalls((), ())
        self._turns: Turns | None = None
        self._turn = 0
        self._of_turn: Shard | None = None
        self._copies = TurnCopies()
        self._extended: Shard | None = None
        self._of_turns: dict[tuple[Linear, int], LinearOperator] = {}
        # Whether the pass under way computes a group ahead of the step; and what all of them add to the sums of each
        # call, (N, F).
        self._is_ahead = False
        self._from_others: dict[int, Tensor] = {}

    @property
    def trained_on(self) -> Shard:
        """The rank's own rows, and behind them the halo's, (N + H). All ranks ask together for the first time."""
        if self._extended is None:
            self._extended = with_halo_rows(self._shard, self.halo_features, share=1.0, key=())
            self._constants = RememberedInputs(self._extended.x, num_rows=self._placement.largest_num_rows)
            # The halo's features are in there; nobody asks for them alone again.
            self._of_constants.clear()
        return self._extended

    @property
    def known_halo_features(self) -> Tensor | None:
        return None if self._extended is None else self._extended.x[self._shard.num_rows :]

    def take_turn(self, epoch: int) -> Shard:
        assert self._turns is not None, "a refresh comes before the first step"
        turn = epoch % self._turns.num_turns
        if self._of_turn is None or turn != self._turn:
            self._turn = turn
            self._copies.end_turn()
            self._of_turn = self._rows_of_turn()
        return self._of_turn

    def _rows_of_turn(self) -> Shard:
        whole = self.trained_on
        if self._groups.has_all_in_one:
            return whole
        node_ids, _ = self._rows_of(whole.node_ids)
        # Edges are those of all rows: nobody but `linear` knows them.
        return replace(whole, x=self._part_of_constant(whole.x), node_ids=node_ids)

    def begin(self, *, is_training: bool) -> None:
        if is_training and not self._is_ahead:
            self._compute_ahead()
        super().begin(is_training=is_training)

    def _compute_ahead(self) -> None:
        """Computes the groups that have no turn in the step to come, one after the other, without gradients."""
        own_turn, own_copies, self._from_others = self._turn, self._copies, {}
        if not self._kept or self._groups.num_turns == 1:
            return
        self._is_ahead = True
        try:
            for turn in range(self._groups.num_turns):
                if turn != own_turn:
                    self._turn, self._copies = turn, TurnCopies()
                    with torch.no_grad():
                        self._run(self._rows_of_turn())
        finally:
            self._turn, self._copies, self._is_ahead = own_turn, own_copies, False
        # Weights that were cast without gradients are no use to the step.
        torch.clear_autocast_cache()

    @property
    def needs_refresh(self) -> bool:
        return self._turns is None or (self._calls.num_stale > 0 and self._reach < self._calls.num_hops)

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        if self._turns is None:
            self._calls = self._trace()
        with super().refreshing():
            yield
        if self._turns is None:
            self._turns = self._make_turns()
            everyone, self._kept = self._kept, []
            for number, sums in enumerate(everyone):
                self._keep(number, sums)

    def _keep(self, number: int, sums: Tensor) -> None:
        """Keeps the sums of the halo rows that take part; of all of them where they are constant, or not known yet."""
        changes = self._calls.change_in_training[number]
        self._kept.append(sums if self._turns is None or not changes else self._turns.among(sums))

    def _make_turns(self) -> Turns:
        shard = self._shard
        seen = halo_seen(shard.adjacency, shard.train_mask.numpy(), self._calls.num_hops)
        num_seen = len(shard.halo_ids) if seen is None else len(seen)
        num_turns = self._num_turns_given or turns_for(shard.num_rows, num_seen)
        if self._num_turns_given is None and seen is None:
            widths = [math.prod(kept.shape[1:]) for kept in self._kept]
            changing = sum(compress(widths, self._calls.change_in_training))
            constant = math.prod(shard.x.shape[1:]) + sum(widths) - changing
            if copies_outweigh(shard.num_rows, num_seen, num_turns, constant, changing):
                num_turns = 1
        return Turns(shard.num_rows, num_turns, seen)

    @property
    def _groups(self) -> Turns:
        assert self._turns is not None, "a refresh comes before the first step"
        return self._turns

    def is_remembered(self, x: Tensor) -> bool:
        return self._constants.covers(self._constant_of(x))

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        number, self._next = self._next, self._next + 1
        if self.is_remembered(x):
            whole = self._sums_of_constant(aggregation, x)
            if self._is_refreshing:
                self._keep(number, self._parts(whole)[1])
            return self._part_of_constant(whole)
        if self._is_refreshing:
            return self._refreshed_sums(number, aggregation, *self._parts(x))
        kept = self._groups.of_turn(self._kept[number], self._turn).to(x.dtype)
        columns = self._columns(aggregation)
        if self._is_ahead:
            self._from_others[number] = columns.multiply(x, add_to=self._from_others.get(number))
            return kept
        own, halo = self._parts(x)
        sums = self._operator(aggregation).own_own @ own
        if number in self._from_others:
            sums.add_(self._from_others.pop(number))
        return torch.cat([sums + multiply_in_turn(columns, halo, self._groups.num_turns), kept])

    def _refreshed_sums(self, number: int, aggregation: Linear, own: Tensor, halo: Tensor) -> Tensor:
        """Returns the sums of all rows, (N + H, F); those of halo rows come from their owners, and are kept."""
        operator = self._operator(aggregation)
        if self._calls.makes_outputs(number):
            # Nobody reads what comes of these sums: they do not travel, and the pass goes on with anything.
            self._keep(number, torch.zeros_like(halo))
            return torch.zeros_like(torch.cat([own, halo]))
        sums = operator.own_own @ own + operator.own_other @ halo
        fetched = self._fetch_now(sums)
        self._keep(number, fetched)
        return torch.cat([sums, fetched.to(sums.dtype)])

    def _sums_of_constant(self, aggregation: Linear, x: Tensor) -> Tensor:
        """Returns the sums of the constant that x is a part of, (N + H, F)."""
        return self._constants.recall(
            aggregation, self._constant_of(x), lambda rows: self._with_exact_halo(aggregation, rows)
        )

    def _columns(self, aggregation: Linear) -> LinearOperator:
        """Returns the columns of the group whose turn it is, (N x G)."""
        remote, key = self._operator(aggregation).own_other, (aggregation, self._turn)
        if key not in self._of_turns:
            columns = self._groups.columns(self._turn)
            self._of_turns[key] = remote if self._groups.has_all_in_one else columns_of(remote, columns)
        return self._of_turns[key]

    def _part_of_constant(self, whole: Tensor) -> Tensor:
        """Returns the rows of this turn of a constant, (N + G, F); ahead of a step (G, F); in a refresh all of them."""
        if self._is_refreshing or self._groups.has_all_in_one:
            return whole
        return self._copies.of(whole, lambda room: self._rows_of(whole, room))

    def _rows_of(self, whole: Tensor, room: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the rows of this turn, and the room that they stand in."""
        if self._is_ahead:
            rows = self._groups.halo(whole, self._turn)
            return rows, rows
        return self._groups.rows(whole, self._turn, room)

    def _constant_of(self, x: Tensor) -> Tensor:
        """Returns the constant that x is a part of, (N + H, F); x itself if it is of none."""
        return self._copies.whole_of(x)

    def _with_exact_halo(self, aggregation: Linear, x: Tensor) -> Tensor:
        """Returns the sums of constant rows: the halo's come from their owners, once, as they are."""
        operator, (own, halo) = self._operator(aggregation), self._parts(x)
        sums = operator.own_own.multiply(own).add_(operator.own_other.multiply(halo))
        with self._booked():
            return torch.cat([sums, self._exchange.start(sums).wait()])

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        num_owned = self._shard.num_rows
        # Split, not sliced: backward, both gradients are put together once.
        own, halo = x.split_with_sizes([num_owned, len(x) - num_owned])
        return own, halo

"""Trace: what a model exchanges and computes in an epoch, learnt from one run of it on three rows.

The model runs on a miniature (`miniature.py`): one training step, forward and backward, and one evaluation. What has
to be known of it before it trains follows from this one run. With e the exchanges of the step, w_e the width of their
rows, and rows_pq the rows (or partial sums) of the placement between ranks p and q:

    traffic          once: what is booked as set-up, the exchanges of constants; in each epoch: all else
                     bytes of e from p to q = rows_pq w_e (bytes of a number)
    coded traffic    bytes of e from p to q = the codec's, of rows_pq rows of width w_e at the rate of p and q
    num_hops         = sum over the step's sums s over neighbours of [rows of s change from step to step]:
                     the loss depends on rows over so many hops, and a reach saves at most so many exchanges
    products         w_e of every product of an epoch, by which a plan weighs grids
    flops            F(k), operations of dense layers with k hops: with k hops, each row of hop j adds
                     F(k - j + 1) - F(k - j), as it runs through the first k - j + 1 layers

A trace is of one placement, since sizes and hops are. `Traces` keeps them, so that checks, choices and predictions run
the model once for each placement that they look at: for `exchange` with three layers, set-up runs the model on a few
rows at most 18 times, where it was 52, and a prediction after it not at all, where it was 4.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from laconic.attach import Attachment, attach, detached_copy
from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger, merged
from laconic.comm.schedules import Measured
from laconic.gradients.shared import SharedGradients
from laconic.records import LedgerRecord
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.cut import Cut
from laconic.sharded.hops import with_hops
from laconic.sharded.miniature import NotingCoder, miniature_of
from laconic.sharded.placement import Placement
from laconic.sharded.rates import Exchanged, RatePlan


@final
@dataclasses.dataclass(frozen=True)
class Trace:
    """One training step and one evaluation of a model, on one placement.

    Args:
        once: this rank's traffic that the first epoch has alone, phase "setup".
        each: its traffic in every epoch, the counting of scores excepted, and without what is coded.
        exchanges: of the step, in order, where they are coded.
        changes_in_training, changes_in_evaluation: of each sum over neighbours, in order, whether its rows change
            from step to step; features and their powers do not.
        is_intact: whether no layer writes into sums that are kept, being constant.
        flops: operations of matrix products in the step, with three rows and one row of each hop.
    """

    once: tuple[LedgerRecord, ...]
    each: tuple[LedgerRecord, ...]
    exchanges: tuple[Exchanged, ...]
    changes_in_training: tuple[bool, ...]
    changes_in_evaluation: tuple[bool, ...]
    is_intact: bool
    flops: int

    @property
    def num_hops(self) -> int:
        """Over how many hops of neighbours the loss depends on rows that change."""
        return sum(self.changes_in_training)

    @property
    def products(self) -> list[int]:
        """Width of the rows of each product of an epoch, without those whose result is kept; where they are coded."""
        widths = {
            direction: [one.width for one in self.exchanges if one.way == "fetch" and one.direction == direction]
            for direction in ("forward", "backward")
        }
        in_evaluation = compress(self.changes_in_evaluation, self.changes_in_training)
        return [*widths["forward"], *widths["backward"], *compress(widths["forward"], in_evaluation)]

    def coded(self, cut: Cut) -> list[Exchanged]:
        """Returns the exchanges of the step that a codec writes, in order; none along a way that has no rows."""
        return [one for one in self.exchanges if cut.of_way(one.way).any()]

    def records(self, epoch: int) -> list[LedgerRecord]:
        """Returns the traffic of an epoch without a codec; rows of epoch 0 are what the first epoch has alone."""
        return [*self.once, *(dataclasses.replace(row, epoch=epoch) for row in self.each)]

    def coded_records(
        self, rank: int, cut: Cut, plan: RatePlan, epoch: int, measured: tuple[Measured, ...] = ()
    ) -> list[LedgerRecord]:
        """Returns the traffic of an epoch through a codec.

        Args:
            measured: what schedules go by.
        """
        ledger = Ledger(rank)
        for one in self.coded(cut):
            rates = plan.rates(epoch, one.layer, measured)
            with ledger.phase(one.direction, layer=one.layer):
                one.count(ledger, plan.codec, cut.of_way(one.way), rates)
        plain = self.records(epoch)[len(self.once) :]
        return [*self.once, *merged([*plain, *ledger.take(epoch)])]


@final
class Traces:
    """The traces of one model, each made when it is first asked for and kept as long as its placement.

    Args:
        model: attached or not; it is copied and stays as it is. Its layers do not change.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._of: WeakKeyDictionary[Placement, dict[bool, Trace]] = WeakKeyDictionary()

    def carry_over(self, before: Placement, after: Placement) -> None:
        """Takes the traces on a placement for those on another that differs in the values of features alone."""
        self._of[after] = self._of.get(before, {})

    def of(self, placement: Placement, *, is_coded: bool = False) -> Trace:
        """Returns the trace on a placement.

        Args:
            is_coded: rows and sums of the step go through a codec.
        """
        kept = self._of.setdefault(placement, {})
        if is_coded not in kept:
            with rehearsing(self.model, placement, is_coded=is_coded) as rehearsal:
                kept[is_coded] = rehearsal.run()
        return kept[is_coded]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Rehearsal:
    """A copy of a model on a miniature.

    Args:
        coder: notes the exchanges of the step, if they are coded.
        attachment: the copy. It may be made to train on other rows than the miniature's.
        share: returns how gradients of the copy are shared.
    """

    miniature: Placement
    coder: NotingCoder
    attachment: Attachment
    aggregator: ShardedAggregator
    share: Callable[[nn.Module, Communicator], SharedGradients]

    def run(self) -> Trace:
        """Plays one training step and one evaluation."""
        counter, ledger = _FlopCounter(), self.miniature.communicator.ledger
        ledger.take(0)
        in_training, in_evaluation, is_intact = self._play(counter)
        exchanges, booked, flops = tuple(self.coder.exchanges), ledger.take(1), counter.total
        once = tuple(dataclasses.replace(row, epoch=0) for row in booked if row.phase == "setup")
        each = [row for row in booked if row.phase != "setup"]
        if not is_intact:
            # A layer writes into sums that are kept, so that they are exchanged again and again.
            self._play(counter)
            each = ledger.take(1)
        return Trace(once, tuple(each), exchanges, in_training, in_evaluation, is_intact, flops)

    def sums(self) -> tuple[list[tuple[bool, ...]], bool]:
        """Returns which sums change in training, and in evaluation, by forward passes alone; and whether all are whole.

        A backward pass runs layers inside of an activation checkpoint again, which not all strategies allow.
        """
        found, is_intact = [], True
        with torch.no_grad():
            for mode in (True, False):
                run_model(self.attachment.model.train(mode), self.attachment.shard)
                found.append(tuple(self.aggregator.changes))
                is_intact &= self.aggregator.keeps_inputs_intact
        return found, is_intact

    def _play(self, counter: "_FlopCounter") -> tuple[tuple[bool, ...], tuple[bool, ...], bool]:
        """Returns which sums change in training, which in evaluation, and whether those that do not are intact."""
        model, aggregator = self.attachment.model, self.aggregator
        gradients = self.share(model, self.miniature.communicator)
        with counter:
            loss = run_model(model.train(), self.attachment.shard).sum()
            # Before the backward pass, in which a checkpoint would sum up once more.
            in_training = tuple(aggregator.changes)
            torch.autograd.backward(gradients.share(loss, weight=1.0))
        is_intact = aggregator.keeps_inputs_intact
        model.zero_grad()
        with torch.no_grad():
            run_model(model.eval(), self.attachment.shard)
        return in_training, tuple(aggregator.changes), is_intact and aggregator.keeps_inputs_intact


@contextmanager
def rehearsing(
    model: nn.Module,
    placement: Placement,
    *,
    is_coded: bool = False,
    share: Callable[[nn.Module, Communicator], SharedGradients] = SharedGradients,
    known_halo_features: Callable[[], Tensor | None] | None = None,
) -> Iterator[Rehearsal]:
    """Puts a copy of a model on the miniature of a placement.

    Args:
        model: attached or not; it stays as it is.
        known_halo_features: as for ShardedAggregator.
    """
    few, actor = miniature_of(placement), detached_copy(model)
    ledger = few.communicator.ledger
    coder = NotingCoder(ledger)
    with torch.random.fork_rng(devices=[]):
        shard = with_hops(few.shard, few.hops, ledger)
        aggregator = ShardedAggregator(few, coder if is_coded else None, known_halo_features, shard=shard)
        yield Rehearsal(few, coder, attach(actor, shard, aggregator=aggregator), aggregator, share)


class _FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of matrix products. Torch's FlopCounterMode sets hooks on the modules of all threads."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.total += int(count(*args, **(kwargs or {}), out_val=out))
        return out

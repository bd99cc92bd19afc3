"""SummedCalls: which sums over neighbours a model makes, noted in one pass of each mode over three rows.

A call sums up constant rows (the features, their powers) or rows that change with weights or dropout. A loss depends on
as many hops of neighbours as calls of a training pass sum up rows that change:

    num_hops = sum over calls c of [rows of c change in training]
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from laconic.attach import attach, detached_copy
from laconic.attach.aggregator import Linear, LocalAggregator
from laconic.attach.forward import run_model
from laconic.attach.remembered import RememberedInputs
from laconic.errors import UnsupportedModelError
from laconic.sharded.placement import Placement
from laconic.sharded.rehearsal import stage_shard


@final
@dataclass(frozen=True)
class SummedCalls:
    """The calls of a pass, in order.

    Args:
        change_in_training: of each call, whether the rows that it sums up change in training.
        change_in_evaluation: the same for evaluation, where nothing is dropped out.
    """

    change_in_training: tuple[bool, ...]
    change_in_evaluation: tuple[bool, ...]

    @property
    def num_hops(self) -> int:
        """How many hops of neighbours a loss depends on, beside constants."""
        return sum(self.change_in_training)

    @property
    def num_stale(self) -> int:
        """Calls whose sums of halo rows grow old: those that change, but the last, whose sums make outputs alone."""
        return max(sum(self.change_in_evaluation) - 1, 0)

    def makes_outputs(self, number: int) -> bool:
        """Whether a call is the last whose sums change: of halo rows it makes outputs alone, which nobody reads."""
        return self.change_in_evaluation[number] and not any(self.change_in_evaluation[number + 1 :])

    @staticmethod
    def of(model: nn.Module, placement: Placement) -> "SummedCalls":
        """Returns the calls of `model`, which is copied and stays as it is.

        Raises UnsupportedModelError where sums of halo rows that are kept would be taken for others.
        """
        noting, actor = _Noting(placement), detached_copy(model)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            attach(actor, noting.shard, aggregator=noting)
            calls = SummedCalls(noting.calls_of(actor.train()), noting.calls_of(actor.eval()))
        found = len(calls.change_in_training), len(calls.change_in_evaluation)
        if found[0] != found[1]:
            raise UnsupportedModelError(
                f"The model sums up neighbours {found[0]} times in training and {found[1]} times in evaluation, and "
                f"what is kept of them would be taken for something else. Use keep=rows."
            )
        return calls


@final
class _Noting(LocalAggregator):
    """Sums up three rows, and notes of which calls the rows change."""

    def __init__(self, placement: Placement) -> None:
        self.shard = stage_shard(placement.shard, num_halo=0)
        super().__init__(self.shard, remember_inputs=False)
        # Whether sums are kept depends on the size of the features on all ranks.
        self._remembered = RememberedInputs(self.shard.x, num_rows=placement.largest_num_rows)
        self._changes: list[bool] = []

    def calls_of(self, model: nn.Module) -> tuple[bool, ...]:
        """Runs the model, and returns of each call whether its rows change."""
        run_model(model, self.shard)
        if not self._remembered.are_intact:
            raise UnsupportedModelError(
                "A layer changes its input in place (inplace=True), and that was what is kept of neighbours. Leave "
                "inplace out, or use keep=rows."
            )
        return tuple(self._changes)

    @property
    def is_shared(self) -> bool:
        return True

    def begin(self, *, is_training: bool) -> None:
        self._changes = []

    def linear(self, aggregation: Linear, x: Tensor) -> Tensor:
        self._changes.append(not self.is_remembered(x))
        return super().linear(aggregation, x)

    def aggregates_first(self, x: Tensor, width_out: int) -> bool:
        return True

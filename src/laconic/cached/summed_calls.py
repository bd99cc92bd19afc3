"""SummedCalls: which sums over neighbours a model makes, noted in one pass of each mode over three rows.

A call sums up constant rows (the features, their powers) or rows that change with weights or dropout. A loss depends on
as many hops of neighbours as calls of a training pass sum up rows that change:

    num_hops = sum over calls c of [rows of c change in training]
"""

from dataclasses import dataclass
from typing import final

from torch import nn

from laconic.errors import UnsupportedModelError
from laconic.sharded.placement import Placement
from laconic.sharded.trace import rehearsing


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
        """Returns the calls of a model, which is copied and stays as it is.

        Raises UnsupportedModelError where sums of halo rows that are kept would be taken for others.
        """
        with rehearsing(model, placement) as rehearsal:
            changes, is_intact = rehearsal.sums()
        if not is_intact:
            raise UnsupportedModelError(
                "A layer changes its input in place (inplace=True), and that was what is kept of neighbours. Leave "
                "inplace out, or use keep=rows."
            )
        calls = SummedCalls(*changes)
        found = len(calls.change_in_training), len(calls.change_in_evaluation)
        if found[0] != found[1]:
            raise UnsupportedModelError(
                f"The model sums up neighbours {found[0]} times in training and {found[1]} times in evaluation, and "
                f"what is kept of them would be taken for something else. Use keep=rows."
            )
        return calls

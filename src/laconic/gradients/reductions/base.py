"""What a gradient reduction is: the gradients of all ranks in, their mean out.

This docstring is the contract.

A member is a frozen dataclass, whose fields are its whole configuration; it makes one `Reducer` per
model and rank, which may remember things from step to step:

    reducer = Bf16().reducer(communicator)
    means = reducer.means({"lin.weight": gradient})     # all ranks, with the same names and shapes

What is promised, and tested for every member (tests/contracts/test_reduction_contract.py): all
ranks get equal means, bit by bit; equal input gives equal output in every run; what is sent depends
on shapes and dtypes alone, so that a rehearsal counts it; one rank alone gets its gradients back as
they are, and sends nothing; a reducer that is continued from `state()` goes on as if it had never
stopped. Traffic is booked where the caller stands, phase "gradients" as a rule; that of `state`
under "checkpoint".
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from laconic.comm.communicator import Communicator


class Reducer(ABC):
    """Makes the gradients of one model those of all ranks, step by step."""

    @abstractmethod
    def means(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the means over ranks, by name, in the same shapes and dtypes."""

    def state(self) -> dict[str, Tensor]:
        """Returns what a checkpoint has to hold, the same on all ranks; all ranks call together."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes back what `state` gave, on any number of ranks.

        Raises ValueError where it is not that.
        """
        if state:
            raise ValueError(f"this gradient reduction remembers nothing, but the state holds {', '.join(state)}")


class GradientReduction(ABC):
    """A way to reduce gradients."""

    @abstractmethod
    def reducer(self, communicator: Communicator) -> Reducer:
        """Returns what reduces the gradients of one model on this rank."""

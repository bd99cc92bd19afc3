"""exact: every gradient in its own dtype. The reference."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.gradients.reductions._buckets import exact_means
from laconic.gradients.reductions.base import GradientReduction, Reducer


@final
@dataclass(frozen=True, slots=True)
class Exact(GradientReduction):
    """Sends every word as it is.

    Traffic: 2 (P - 1) times the gradients' bytes, for all ranks together.
    """

    def reducer(self, communicator: Communicator) -> Reducer:
        return _ExactReducer(communicator)


@final
class _ExactReducer(Reducer):
    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def means(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(gradients, exact_means(self._communicator, list(gradients.values())), strict=True))

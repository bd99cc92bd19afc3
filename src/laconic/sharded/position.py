"""Position: where in a step an exchange happens, for the ledger."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, final

from laconic.comm.ledger import Ledger


@final
@dataclass(frozen=True)
class Position:
    """A phase of the step, and the number of the layer in the order of the model's modules."""

    phase: Literal["setup", "forward", "backward", "evaluation"]
    layer: int

    @property
    def backward(self) -> "Position":
        """Where the gradient of what happens here travels."""
        return replace(self, phase="backward")

    def booked(self, ledger: Ledger) -> AbstractContextManager[None]:
        """Inside, traffic is counted here."""
        return ledger.phase(self.phase, layer=self.layer)

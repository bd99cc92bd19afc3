"""What a convolution's file gives: when our kernel stands for PyG's code, and the forward pass written with it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from laconic.attach.scope import Scope


@final
@dataclass(frozen=True)
class Convolution:
    """One PyG convolution on our kernels.

    Args:
        refuse: returns why this instance cannot run on the kernel ("its aggregation is 'lstm'"), or None.
        forward: `forward(conv, scope, x, weighted)` gives PyG's output for rows x; `weighted`: with the edge weights.
    """

    refuse: Callable[[Any], str | None]
    forward: Callable[[Any, Scope, Tensor, bool], Tensor]


def refuse_aggregation(conv: Any, *supported: str) -> str | None:
    """Returns why the aggregation of `conv` is not one of `supported`, or None."""
    return None if conv.aggr in supported else f"its aggregation is {conv.aggr!r}, not one of {', '.join(supported)}"

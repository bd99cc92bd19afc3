"""A linear map that ranks compute together, as a differentiable function.

    forward     y = L x
    backward    dL/dx = L^T dL/dy       the adjoint, at the same layer of the backward pass

The gradient is such a map again, so that gradients of gradients exist too.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laconic.comm.ledger import Ledger
from laconic.sharded.position import Position

Map = Callable[[Tensor], Tensor]


def apply_linear(run: Map, adjoint: Map, x: Tensor, ledger: Ledger, position: Position) -> Tensor:
    """Returns run(x), differentiable in x; booked at `position`.

    Args:
        run, adjoint: L and L^T, which autograd does not record; all ranks call them together.
    """
    return _apply(x, run, adjoint, ledger, position)


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Map, adjoint: Map, ledger: Ledger, position: Position) -> Tensor:
        ctx.back = (adjoint, run, ledger, position.backward)
        with position.booked(ledger):
            return run(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _apply(grads[0], *ctx.back), None, None, None, None


# Torch leaves `apply` untyped.
_apply: Callable[..., Tensor] = _Apply.apply

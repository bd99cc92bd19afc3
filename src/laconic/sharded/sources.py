"""Halo rows appended to owned rows, as a differentiable function; for convolutions that are not a fixed matrix."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laconic.comm.exchange import Route
from laconic.sharded.position import Position

# Shapes: N owned rows, H halo rows


def with_halo(route: Route, x: Tensor, position: Position) -> Tensor:
    """Returns the owned rows x, (N, ...), followed by the halo rows, (N + H, ...).

    They travel by `route`, booked at `position`.
    """
    return _with_halo(x, route, position)


class _WithHalo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, position: Position) -> Tensor:
        ctx.route, ctx.position = route, position
        with position.booked(route.communicator.ledger):
            return torch.cat([x, route.start(x).wait()])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(grads[0], ctx.route, ctx.position.backward), None, None


class _Gathered(torch.autograd.Function):
    """The adjoint: each owned row gets the sum of its gradients on all ranks."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, route: Route, position: Position) -> Tensor:
        ctx.route, ctx.position = route, position
        num_owned = route.num_owned
        with position.booked(route.communicator.ledger):
            back = route.start_back(grad[num_owned:])
            own = grad[:num_owned].clone(memory_format=torch.contiguous_format)
            rows = back.wait()
            route.add_back(rows.flatten(1) if rows.dim() > 2 else rows, own.flatten(1) if own.dim() > 2 else own)
        return own

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _with_halo(grads[0], ctx.route, ctx.position), None, None


# Torch leaves `apply` untyped.
_with_halo: Callable[..., Tensor] = _WithHalo.apply
_gathered: Callable[..., Tensor] = _Gathered.apply

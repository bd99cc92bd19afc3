"""Halo rows appended to owned rows, as a differentiable function; for convolutions that are not a fixed matrix."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laconic.comm.exchange import RowExchange
from laconic.halo.position import Position

# Shapes: N owned rows, H halo rows


def with_halo(exchange: RowExchange, x: Tensor, position: Position) -> Tensor:
    """Returns the owned rows x, (N, ...), followed by the halo rows, (N + H, ...); booked at `position`."""
    return _with_halo(x, exchange, position)


class _WithHalo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: RowExchange, position: Position) -> Tensor:
        ctx.exchange, ctx.position = exchange, position
        with position.booked(exchange.communicator.ledger):
            return torch.cat([x, exchange.start(x).wait()])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _gathered(grads[0], ctx.exchange, ctx.position.backward), None, None


class _Gathered(torch.autograd.Function):
    """The adjoint: each owned row gets the sum of its gradients on all ranks."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, exchange: RowExchange, position: Position) -> Tensor:
        ctx.exchange, ctx.position = exchange, position
        num_owned = exchange.num_owned
        with position.booked(exchange.communicator.ledger):
            back = exchange.start_back(grad[num_owned:])
            own = grad[:num_owned].clone(memory_format=torch.contiguous_format)
            rows = back.wait()
            exchange.add_back(rows.flatten(1) if rows.dim() > 2 else rows, own.flatten(1) if own.dim() > 2 else own)
        return own

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _with_halo(grads[0], ctx.exchange, ctx.position), None, None


# Torch leaves `apply` untyped.
_with_halo: Callable[..., Tensor] = _WithHalo.apply
_gathered: Callable[..., Tensor] = _Gathered.apply

"""A layer's linear part as one autograd function, M x W^T + x V^T + b: what needs no other rank runs while rows travel.

Left alone, autograd makes weight gradients before a message leaves, or after it has come. Here what is sent is made
first, forward and backward, and then what needs nothing from others.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from laconic.sharded.operator import SplitOperator, split_product
from laconic.sharded.position import Position

# Shapes: N owned rows, x (N, in), W and V (out, in), b (out,)
Gradients = tuple[Tensor | None, ...]


def project_after(
    operator: SplitOperator, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor | None, position: Position
) -> Tensor:
    """Returns (M x) W^T + x V^T + b, with x exchanged: for a layer that does not become narrower.

    Args:
        operator: M.
        weight, bias, own: W, b and V.
    """
    return _after(x, weight, bias, own, operator, position)


def project_before(
    operator: SplitOperator, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor | None, position: Position
) -> Tensor:
    """Returns M (x W^T) + x V^T + b, with x W^T exchanged: for a layer that becomes narrower."""
    return _before(x, weight, bias, own, operator, position)


class _After(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        own: Tensor | None,
        operator: SplitOperator,
        position: Position,
    ) -> Tensor:
        ctx.operator, ctx.position = operator, position
        with position.booked(operator.exchange.communicator.ledger):
            halo = operator.exchange.start(x)
        out = None if own is None else F.linear(x, own, bias)
        local = operator.local.multiply(x)
        aggregated = operator.remote.multiply(halo.wait(), add_to=local)
        ctx.save_for_backward(x, weight, own, aggregated)
        return F.linear(aggregated, weight, bias) if out is None else out.addmm_(aggregated, weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (x, weight, own, aggregated), grad = ctx.saved_tensors, grads[0]
        if torch.is_grad_enabled():
            aggregated = split_product(ctx.operator, x, ctx.position)
        needs_x, needs_weight, needs_bias, needs_own = ctx.needs_input_grad[:4]

        def rest() -> tuple[Tensor | None, Gradients]:
            return (
                grad @ own if needs_x and own is not None else None,
                (
                    grad.t() @ aggregated if needs_weight else None,
                    grad.sum(0) if needs_bias else None,
                    grad.t() @ x if needs_own else None,
                ),
            )

        if not needs_x:
            return (None, *rest()[1], None, None)
        grad_x, (from_own, others) = _back(ctx, grad @ weight, rest)
        return (grad_x if from_own is None else _add(grad_x, from_own), *others, None, None)


class _Before(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        own: Tensor | None,
        operator: SplitOperator,
        position: Position,
    ) -> Tensor:
        ctx.operator, ctx.position = operator, position
        ctx.save_for_backward(x, weight, own)
        projected = F.linear(x, weight)
        with position.booked(operator.exchange.communicator.ledger):
            halo = operator.exchange.start(projected)
        out = operator.local.multiply(projected)
        if own is not None:
            out.addmm_(x, own.t())
        if bias is not None:
            out.add_(bias)
        return operator.remote.multiply(halo.wait(), add_to=out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (x, weight, own), grad = ctx.saved_tensors, grads[0]
        needs_x, needs_weight, needs_bias, needs_own = ctx.needs_input_grad[:4]

        def rest() -> Gradients:
            return (
                grad @ own if needs_x and own is not None else None,
                grad.sum(0) if needs_bias else None,
                grad.t() @ x if needs_own else None,
            )

        if not needs_x and not needs_weight:
            _, grad_bias, grad_own = rest()
            return None, None, grad_bias, grad_own, None, None
        grad_projected, (grad_x, grad_bias, grad_own) = _back(ctx, grad, rest)
        if needs_x:
            grad_x = grad_projected @ weight if grad_x is None else _add_product(grad_x, grad_projected, weight)
        grad_weight = grad_projected.t() @ x if needs_weight else None
        return grad_x, grad_weight, grad_bias, grad_own, None, None


def _back(ctx: Any, grad: Tensor, rest: Callable[[], Any]) -> tuple[Tensor, Any]:
    """Returns M^T grad, and what `rest` returns, which runs while rows travel."""
    operator, position = ctx.operator, ctx.position.backward
    if torch.is_grad_enabled():
        # Someone will differentiate once more.
        return split_product(operator, grad, position, is_transposed=True), rest()
    with position.booked(operator.exchange.communicator.ledger):
        back = operator.start_transposed(grad)
    meanwhile = rest()
    return operator.finish_transposed(grad, back), meanwhile


def _add(into: Tensor, values: Tensor) -> Tensor:
    return into + values if torch.is_grad_enabled() else into.add_(values)


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(into, a, b) if torch.is_grad_enabled() else into.addmm_(a, b)


# Torch leaves `apply` untyped.
_after: Callable[..., Tensor] = _After.apply
_before: Callable[..., Tensor] = _Before.apply

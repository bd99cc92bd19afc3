"""A layer's linear part as one autograd function: work that needs no other rank runs while rows and sums travel.

    project_after     out = (M x) W^T + x V^T + b     rows of x travel: the layer does not become narrower
    project_before    out = M (x W^T) + x V^T + b     rows of x W^T travel: the layer becomes narrower

Left alone, autograd makes weight gradients before a message leaves, or after it has come. Here messages leave first,
forward and backward, and x V^T and the weight gradients are made while they travel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from laconic.comm.ledger import Ledger
from laconic.sharded.operator import ShardedOperator
from laconic.sharded.position import Position
from laconic.sharded.product import sharded_product

# Shapes: N owned rows, x (N, in), W and V (out, in), b (out,)
Gradients = tuple[Tensor | None, ...]


@final
@dataclass(frozen=True, eq=False)
class Exchanging:
    """The matrix of a layer, and where in a step its rows travel."""

    operator: ShardedOperator
    ledger: Ledger
    position: Position

    def multiply(self, x: Tensor, meanwhile: Callable[[Tensor], None]) -> Tensor:
        """Returns M x; `meanwhile` is called with the part of M x that is known before others' rows are here."""
        with self.position.booked(self.ledger):
            return self.operator.multiply_while(x, x.shape[1], meanwhile)

    def product(self, x: Tensor) -> Tensor:
        """Returns M x, differentiable in x."""
        return sharded_product(self.operator, x, x.shape[1], self.ledger, self.position)

    @property
    def transposed(self) -> "Exchanging":
        """The backward pass: M^T, whose rows travel the other way."""
        return Exchanging(self.operator.transposed, self.ledger, self.position.backward)


def project_after(matrix: Exchanging, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor | None) -> Tensor:
    """Returns (M x) W^T + x V^T + b.

    Args:
        matrix: M.
        weight, bias, own: W, b and V.
    """
    return _after(x, weight, bias, own, matrix)


def project_before(matrix: Exchanging, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor | None) -> Tensor:
    """Returns M (x W^T) + x V^T + b."""
    return _before(x, weight, bias, own, matrix)


class _After(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor | None, matrix: Exchanging
    ) -> Tensor:
        projected: list[Tensor] = []

        def meanwhile(known: Tensor) -> None:
            if own is not None:
                projected.append(F.linear(x, own, bias))

        aggregated = matrix.multiply(x, meanwhile)
        ctx.matrix = matrix
        ctx.save_for_backward(x, weight, own, aggregated)
        return projected[0].addmm_(aggregated, weight.t()) if projected else F.linear(aggregated, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        (x, weight, own, aggregated), grad = ctx.saved_tensors, grads[0]
        if torch.is_grad_enabled():
            aggregated = ctx.matrix.product(x)
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
            return (None, *rest()[1], None)
        grad_x, (from_own, others) = _back(ctx.matrix, grad @ weight, rest)
        return (grad_x if from_own is None else _add(grad_x, from_own), *others, None)


class _Before(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, own: Tensor | None, matrix: Exchanging
    ) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(x, weight, own)

        def meanwhile(known: Tensor) -> None:
            if own is not None:
                known.addmm_(x, own.t())
            if bias is not None:
                known.add_(bias)

        return matrix.multiply(F.linear(x, weight), meanwhile)

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
            return None, None, grad_bias, grad_own, None
        grad_projected, (grad_x, grad_bias, grad_own) = _back(ctx.matrix, grad, rest)
        if needs_x:
            grad_x = grad_projected @ weight if grad_x is None else _add_product(grad_x, grad_projected, weight)
        grad_weight = grad_projected.t() @ x if needs_weight else None
        return grad_x, grad_weight, grad_bias, grad_own, None


def _back(matrix: Exchanging, grad: Tensor, rest: Callable[[], Any]) -> tuple[Tensor, Any]:
    """Returns M^T grad, and the result of `rest`, which runs while rows travel."""
    if torch.is_grad_enabled():
        # Someone will differentiate once more.
        return matrix.transposed.product(grad), rest()
    meanwhile: list[Any] = []
    product = matrix.transposed.multiply(grad, lambda known: meanwhile.append(rest()))
    return product, meanwhile[0]


def _add(into: Tensor, values: Tensor) -> Tensor:
    return into + values if torch.is_grad_enabled() else into.add_(values)


def _add_product(into: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.addmm(into, a, b) if torch.is_grad_enabled() else into.addmm_(a, b)


# Torch leaves `apply` untyped.
_after: Callable[..., Tensor] = _After.apply
_before: Callable[..., Tensor] = _Before.apply

"""Gradients summed over ranks: when `backward` returns, every p.grad is the gradient of the global loss.

    loss = share_loss(local_loss, model, communicator)      # its value is the sum over ranks
    loss.backward()                                         # p.grad is the sum of every rank's

A local loss is the rank's sum over the global number of training nodes, so that parts of any size add up.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator

# Gradients travel together up to this size: large enough that starting a message costs nothing beside it, small enough
# that one is summed while the next travels.
BUCKET_BYTES = 25 << 20


def share_loss(loss: Tensor, model: nn.Module, communicator: Communicator) -> Tensor:
    """Returns the sum of the ranks' losses, whose `backward` combines the gradients of `model`."""
    with communicator.ledger.phase("forward"):
        shared: Tensor = _shared_loss(loss, model, communicator)
    return shared


def combine_gradients(model: nn.Module, communicator: Communicator) -> None:
    """Replaces every gradient by its sum over ranks.

    A parameter that some ranks did not use counts as 0 there; one that no rank used keeps no gradient, as on one
    machine.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with communicator.ledger.phase("gradients"):
        is_used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        is_used = communicator.all_reduce(is_used, op="max")
        used = [parameter for parameter, flag in zip(parameters, is_used.tolist(), strict=True) if flag]
        under_way = [
            (bucket, communicator.start_all_reduce(torch.cat([_gradient(parameter) for parameter in bucket])))
            for bucket in buckets(used)
        ]
        for bucket, pending in under_way:
            summed = pending.wait()
            for parameter, values in zip(bucket, torch.split(summed, [p.numel() for p in bucket]), strict=True):
                parameter.grad = values.view(parameter.shape).clone()


def buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yields the parameters in groups of one dtype and of at most BUCKET_BYTES (or one parameter), in their order."""
    by_dtype: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        by_dtype.setdefault(parameter.dtype, []).append(parameter)
    for group in by_dtype.values():
        bucket: list[nn.Parameter] = []
        for parameter in group:
            if bucket and sum(p.nbytes for p in bucket) + parameter.nbytes > BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(parameter)
        yield bucket


def _gradient(parameter: nn.Parameter) -> Tensor:
    grad = parameter.grad
    return torch.zeros_like(parameter).flatten() if grad is None else grad.to_dense().flatten()


class _SharedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, model: nn.Module, communicator: Communicator) -> Tensor:
        ctx.model, ctx.communicator = model, communicator
        return communicator.all_reduce(loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        model, communicator = ctx.model, ctx.communicator
        # What earlier backward passes left is combined already: it is put aside and added again.
        before = {parameter: parameter.grad for parameter in model.parameters() if parameter.grad is not None}
        for parameter in before:
            parameter.grad = None

        def combine() -> None:
            combine_gradients(model, communicator)
            for parameter, grad in before.items():
                parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)

        # The first node of the backward pass; the engine calls this after the last.
        torch.autograd.Variable._execution_engine.queue_callback(combine)
        return grads[0], None, None


# Torch leaves `apply` untyped.
_shared_loss: Callable[..., Tensor] = _SharedLoss.apply

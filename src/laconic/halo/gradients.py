"""Gradients summed over ranks: when `backward` returns, every p.grad is the gradient of the global loss.

    shared = SharedGradients(model, communicator)
    loss = shared.share(local_loss)         # its value is the sum over ranks
    loss.backward()                         # p.grad is the gradient of that sum

A local loss is the rank's sum over the global number of training nodes, so that parts of any size add up. Other terms
may be added to the shared loss, such as a penalty on weights: they are the same on all ranks, and count once.
"""

from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError

# Gradients travel together up to this size: large enough that starting a message costs nothing beside it, small enough
# that one is summed while the next travels.
BUCKET_BYTES = 25 << 20


@final
class SharedGradients:
    """Makes the gradients of one model those of all ranks."""

    def __init__(self, model: nn.Module, communicator: Communicator, *, loss_phase: str = "forward") -> None:
        self._model = model
        self._loss_phase = loss_phase
        self.communicator = communicator
        self._are_leaves_checked = False
        self._pass_under_way: int | None = None

    def share(self, loss: Tensor) -> Tensor:
        """Returns the sum of the ranks' losses, whose `backward` combines the gradients; all ranks call together."""
        if not self._are_leaves_checked and loss.grad_fn is not None:
            self._check_leaves(loss)
            self._are_leaves_checked = True
        with self.communicator.ledger.phase(self._loss_phase):
            shared: Tensor = _shared_loss(loss, self)
        return shared

    def begin_backward(self) -> None:
        """Told that a backward pass has come to a shared loss; combines once, when it ends."""
        number = torch._C._current_graph_task_id()
        if number == self._pass_under_way:
            # A second shared loss in the same pass.
            return
        self._pass_under_way = number
        # What earlier passes left is combined already: it is put aside and added again.
        before = {parameter: parameter.grad for parameter in self._model.parameters() if parameter.grad is not None}
        for parameter in before:
            parameter.grad = None

        def combine() -> None:
            self._pass_under_way = None
            combine_gradients(self._model, self.communicator)
            for parameter, grad in before.items():
                parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)

        # The engine calls it after the last node of this pass.
        torch.autograd.Variable._execution_engine.queue_callback(combine)

    def _check_leaves(self, loss: Tensor) -> None:
        """Raises ConfigError if the loss depends on something trained that is not the model's, such as another head.

        Each rank would begin with its own weights there, and train them alone.
        """
        known = {id(parameter) for parameter in self._model.parameters()}
        seen, waiting = set(), [loss.grad_fn]
        while waiting:
            node: Any = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None and isinstance(leaf, nn.Parameter) and id(leaf) not in known:
                raise ConfigError(
                    f"The loss depends on a parameter of shape {tuple(leaf.shape)} that is not in the attached model, "
                    f"so ranks would train it apart. Put all that is trained into one module, and attach that."
                )
            waiting += [following for following, _ in node.next_functions]


def combine_gradients(model: nn.Module, communicator: Communicator) -> None:
    """Replaces every gradient by its mean over ranks.

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
            mean = pending.wait() / communicator.num_ranks
            for parameter, values in zip(bucket, torch.split(mean, [p.numel() for p in bucket]), strict=True):
                parameter.grad = values.view(parameter.shape)


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
    def forward(ctx: Any, loss: Tensor, shared: SharedGradients) -> Tensor:
        ctx.shared = shared
        return shared.communicator.all_reduce(loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.shared.begin_backward()
        # Gradients are combined as a mean, so that terms beside this one, equal on all ranks, come out once.
        return grads[0] * ctx.shared.communicator.num_ranks, None


# Torch leaves `apply` untyped.
_shared_loss: Callable[..., Tensor] = _SharedLoss.apply

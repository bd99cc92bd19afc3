"""Gradients summed over ranks: when `backward` returns, every p.grad is the gradient of the global loss.

    shared = SharedGradients(model, communicator)
    loss = shared.share(local_loss)         # its value is the sum over ranks
    loss.backward()                         # p.grad is the gradient of that sum

A local loss is the rank's sum over the global number of training nodes, so that parts of any size add up. Other terms
may be added to the shared loss, such as a penalty on weights: they are the same on all ranks, and count once.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError
from laconic.halo.reductions import Exact, GradientReduction, Reducer


@final
class SharedGradients:
    """Makes the gradients of one model those of all ranks.

    Args:
        model: whose gradients.
        communicator: how the ranks talk.
        reduction: how the gradients travel; by default as they are.
        loss_phase: what the sum of the losses, one number, is booked under.
    """

    def __init__(
        self,
        model: nn.Module,
        communicator: Communicator,
        *,
        reduction: GradientReduction | None = None,
        loss_phase: str = "forward",
    ) -> None:
        self._model = model
        self._loss_phase = loss_phase
        self.communicator = communicator
        self.reducer = (Exact() if reduction is None else reduction).reducer(communicator)
        """What a checkpoint has to remember of the reduction is its `state()`."""
        self._are_leaves_checked = False
        self._pass_under_way: int | None = None
        self.is_measured = False
        """Whether those below are kept; the same numbers on all ranks."""
        self.loss = 0.0
        self.gradient_norm = 0.0
        self.gradient_change = 0.0
        """Squared distance of the last gradient from the one before."""
        self.last_gradient: Tensor | None = None

    def share(self, loss: Tensor) -> Tensor:
        """Returns the sum of the ranks' losses, whose `backward` combines the gradients; all ranks call together."""
        if not self._are_leaves_checked and loss.grad_fn is not None:
            check_leaves(loss, self._model)
            self._are_leaves_checked = True
        with self.communicator.ledger.phase(self._loss_phase):
            shared: Tensor = _shared_loss(loss, self)
        if self.is_measured:
            self.loss = float(shared.detach())
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
            combine_gradients(self._model, self.communicator, self.reducer)
            if self.is_measured:
                self._measure()
            for parameter, grad in before.items():
                parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)

        # The engine calls it after the last node of this pass.
        torch.autograd.Variable._execution_engine.queue_callback(combine)

    def _measure(self) -> None:
        grads = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        gradient = torch.cat([grad.detach().double().flatten() for grad in grads]) if grads else torch.zeros(1)
        before = self.last_gradient
        self.gradient_norm = float(gradient.norm())
        self.gradient_change = 0.0
        # Of another shape if other parameters were used.
        if before is not None and before.shape == gradient.shape:
            self.gradient_change = float((gradient - before).square().sum())
        self.last_gradient = gradient


def check_leaves(loss: Tensor, model: nn.Module) -> None:
    """Raises ConfigError if the loss depends on something trained that is not the model's, such as another head.

    Each rank would begin with its own weights there, and train them alone.
    """
    known = {id(parameter) for parameter in model.parameters()}
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


def combine_gradients(model: nn.Module, communicator: Communicator, reducer: Reducer) -> None:
    """Replaces every gradient by its mean over ranks.

    A parameter that some ranks did not use counts as 0 there; one that no rank used keeps no gradient, as on one
    machine.

    Args:
        reducer: makes the means.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with communicator.ledger.phase("gradients"):
        is_used = torch.tensor([parameter.grad is not None for parameter in parameters.values()], dtype=torch.uint8)
        is_used = communicator.all_reduce(is_used, op="max")
        used = [name for name, flag in zip(parameters, is_used.tolist(), strict=True) if flag]
        for name, mean in reducer.means({name: _gradient(parameters[name]) for name in used}).items():
            parameters[name].grad = mean


def _gradient(parameter: nn.Parameter) -> Tensor:
    grad = parameter.grad
    return torch.zeros_like(parameter) if grad is None else grad.to_dense()


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

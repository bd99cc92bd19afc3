"""Gradients summed over ranks: after `backward`, p.grad is the gradient of the global loss.

    shared = SharedGradients(model, communicator)
    loss = shared.share(total, weight)      # the totals of all ranks over the weights of all ranks
    loss.backward()                         # p.grad is the gradient of that quotient

With S_k the sum of the losses of rank k's rows, and W_k what its rows weigh (their number, as a
rule):

    loss = sum_k S_k / sum_k W_k            gradient = sum_k dS_k / sum_k W_k

so that parts of any size add up to torch's mean over all rows. Both sums travel in one all_reduce.
Other terms may be added to the shared loss, such as a penalty on weights: they are the same on all
ranks, and count once.
"""

import logging
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, DataError
from laconic.gradients.first_weights import copy_from_first
from laconic.gradients.reductions import Exact, GradientReduction
from laconic.gradients.same_weights import FINGERPRINT_BYTES, fingerprint, is_same, refuse_different
from laconic.gradients.shared_pass import SharedPass

logger = logging.getLogger(__name__)


@final
class SharedGradients:
    """Makes the gradients of one model those of all ranks.

    Args:
        model: whose gradients.
        communicator: how the ranks talk.
        reduction: how the gradients travel; by default as they are.
        loss_phase: what the sums of a loss, two numbers, are booked under.
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
        # Steps in which weights were not the same bit by bit on all ranks.
        self._num_unequal = 0
        self.shared_pass = SharedPass()
        """Knows whether a backward pass came through one of these losses."""
        self.is_measured = False
        """Whether those below are kept; the same numbers on all ranks."""
        self.loss = 0.0
        self.gradient_norm = 0.0
        self.gradient_change = 0.0
        """Squared distance of the last gradient from the one before."""
        self.last_gradient: Tensor | None = None

    def share(self, total: Tensor, weight: float | None = None) -> Tensor:
        """Returns the loss of all ranks, whose `backward` combines gradients; all call together.

        Traffic: an all_reduce of 16 bytes, in the phase of the loss.

        Args:
            total: the sum of this rank's losses, or its share of the loss of all ranks.
            weight: what this rank's rows weigh; None: the ranks' totals are added up and not
                divided.
        """
        if not self._are_leaves_checked and total.grad_fn is not None:
            check_leaves(total, self._model)
            self._are_leaves_checked = True
        if weight is None:
            weight = 1.0 if self.communicator.rank == 0 else 0.0
        with self.communicator.ledger.phase(self._loss_phase):
            shared: Tensor = _shared_loss(total, weight, self)
        if self.is_measured:
            self.loss = float(shared.detach())
        return shared

    def begin_backward(self) -> None:
        """Told that a backward pass has come to a shared loss; combines once, when it ends."""
        before: dict[nn.Parameter, Tensor] = {}

        def combine() -> None:
            self._combine()
            if self.is_measured:
                self._measure()
            for parameter, grad in before.items():
                parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)

        if not self.shared_pass.begin(combine):
            # A second shared loss in the same pass.
            return
        # What earlier passes left is combined already: it is put aside and added again.
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                before[parameter], parameter.grad = parameter.grad, None

    def _combine(self) -> None:
        """Replaces every gradient by its mean over ranks.

        A parameter that some ranks did not use counts as 0 there; one that no rank used keeps no
        gradient, as on one machine. A fingerprint of the weights goes along: weights that differ
        are found before the next step.
        """
        communicator = self.communicator
        named = dict(self._model.named_parameters())
        parameters = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
        with communicator.ledger.phase("gradients"):
            is_used = torch.tensor([parameter.grad is not None for parameter in parameters.values()], dtype=torch.uint8)
            if communicator.num_ranks > 1:
                found = communicator.all_reduce(torch.cat([fingerprint(named.values()), is_used]), op="max")
                if not is_same(found[:FINGERPRINT_BYTES]):
                    self._compare_weights()
                is_used = found[FINGERPRINT_BYTES:]
            used = [name for name, flag in zip(parameters, is_used.tolist(), strict=True) if flag]
            for name, mean in self.reducer.means({name: _gradient(parameters[name]) for name in used}).items():
                parameters[name].grad = mean

    def _compare_weights(self) -> None:
        """Raises RanksDifferError on all ranks, unless weights are the same but for rounding.

        On machines of different kinds no step leaves the same bits: whole models, which are dear to
        send, are compared in the first such step, the second, the fourth, and so on.
        """
        self._num_unequal += 1
        if self._num_unequal & (self._num_unequal - 1):
            return
        refuse_different(dict(self._model.named_parameters()), self.communicator)
        if self._num_unequal == 1 and self.communicator.rank == 0:
            logger.warning(
                "Weights differ between ranks in their last digits: machines round the optimizer's steps differently, "
                "or a line of the loop changes weights on some ranks only. Should they drift apart, the run ends."
            )

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


def share_gradients(
    model: nn.Module,
    communicator: Communicator,
    *,
    reduction: GradientReduction | None = None,
    loss_phase: str = "forward",
) -> SharedGradients:
    """Gives all ranks the weights of rank 0, and returns the gradients that they share.

    All ranks call it together.
    """
    copy_from_first(model, communicator)
    return SharedGradients(model, communicator, reduction=reduction, loss_phase=loss_phase)


def check_leaves(loss: Tensor, model: nn.Module) -> None:
    """Raises ConfigError if the loss trains something beside the model, such as another head.

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


def _gradient(parameter: nn.Parameter) -> Tensor:
    grad = parameter.grad
    return torch.zeros_like(parameter) if grad is None else grad.to_dense()


class _SharedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, weight: float, shared: SharedGradients) -> Tensor:
        mine = torch.stack([total.detach().double().reshape(()), total.new_tensor(weight, dtype=torch.float64)])
        total_of_all, weight_of_all = shared.communicator.all_reduce(mine).tolist()
        check_weight(weight_of_all)
        ctx.shared, ctx.weight = shared, weight_of_all
        return total.new_full(total.shape, total_of_all / weight_of_all)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.shared.begin_backward()
        # Gradients are combined as a mean, so that terms beside this one, equal on all ranks, come out once.
        return grads[0] * (ctx.shared.communicator.num_ranks / ctx.weight), None, None


# Torch leaves `apply` untyped.
_shared_loss: Callable[..., Tensor] = _SharedLoss.apply


def check_weight(weight: float) -> None:
    """Raises DataError if the rows of all ranks weigh nothing, so that they have no mean."""
    if weight == 0.0:
        raise DataError(
            "No training node counts in this loss: the labels of all of them are its ignore_index, or their classes "
            "have the weight 0. Label some training nodes, or give other weights."
        )

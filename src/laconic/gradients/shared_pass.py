"""SharedPass: whether a backward pass came through a shared loss.

A pass that did not would train every rank apart.

A shared loss calls `begin` in its backward pass. The outputs of the model call `check` when their
gradient arrives. The engine runs what was recorded last first: the loss comes before the outputs
that it was made of.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from laconic.errors import ConfigError


@final
class SharedPass:
    """The backward pass under way, for one model."""

    def __init__(self) -> None:
        self._under_way: int | None = None

    def begin(self, at_end: Callable[[], None]) -> bool:
        """Told by a shared loss that a backward pass has come to it.

        Returns whether this loss is the first one of the pass.

        Args:
            at_end: called when the pass ends. Only that of the first loss is called.
        """
        number = torch._C._current_graph_task_id()
        if number == self._under_way:
            return False
        self._under_way = number

        def end() -> None:
            self._under_way = None
            at_end()

        # The engine calls it after the last node of this pass.
        torch.autograd.Variable._execution_engine.queue_callback(end)
        return True

    def marked(self, loss: Tensor) -> Tensor:
        """Returns the loss as it is; its backward pass is known as that of a shared loss."""
        marked: Tensor = _mark(loss, self)
        return marked

    def check(self) -> None:
        """Raises ConfigError unless the backward pass under way came through a shared loss.

        A pass inside another one, such as that of an activation checkpoint, belongs to the outer
        one.
        """
        if self._under_way is None:
            raise ConfigError(
                "This backward pass does not come from session.loss: every rank would train on its own nodes alone, "
                "and the ranks' weights would drift apart. Write\n"
                "    loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)\n"
                "and call loss.backward(). It takes any loss of torch, or one of your own that returns one number per "
                "node. Add penalties on weights to what it returns. (Gradients that are not for training can be taken "
                "in eval mode.)"
            )


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, shared_pass: SharedPass) -> Tensor:
        ctx.shared_pass = shared_pass
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.shared_pass.begin(lambda: None)
        return grads[0], None


# Torch leaves `apply` untyped.
_mark: Callable[..., Tensor] = _Mark.apply

"""Activation checkpointing (torch.utils.checkpoint): parts of a forward pass that are run again in the backward pass.

The second run must drop what the first one dropped. Torch sees to that for its own dropout, by putting its random state
back; a key that counts calls would have moved on. So in such parts dropout is torch's own, not keyed. Where a strategy
gives convolutions other rows than the shard's, the second run would not find them: it is refused.
"""

import torch

from laconic.errors import ConfigError


def is_in_backward() -> bool:
    """Whether this runs inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def is_recording() -> bool:
    """Whether a checkpoint of the present kind (use_reentrant=False) records this, or runs it again."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and hooks[0].__module__ == torch.utils.checkpoint.__name__


def is_run_twice(grad_enabled_before: bool) -> bool:
    """Whether this part of the forward pass will be run again, or is being run again.

    Args:
        grad_enabled_before: whether autograd recorded when the model was called. The old kind of checkpoint
            (use_reentrant=True) shows only by turning that off inside.
    """
    return is_in_backward() or is_recording() or (grad_enabled_before and not torch.is_grad_enabled())


def refuse_old_checkpoint() -> None:
    """Raises ConfigError where the old kind of checkpoint runs again what it was not seen to record: a whole model."""
    if is_in_backward() and not is_recording():
        raise ConfigError(
            "A model that is attached to a graph was called under torch.utils.checkpoint with use_reentrant=True, so "
            "its dropout could not be repeated. Use use_reentrant=False."
        )


def refuse_second_run(conv_name: str) -> None:
    """Raises ConfigError if a convolution whose rows are not there any more in the backward pass is to run again then.

    A checkpoint of the present kind is refused when it records, one of the old kind when it runs again.
    """
    if is_in_backward() or is_recording():
        raise ConfigError(
            f"{conv_name} was called under torch.utils.checkpoint, which runs it again in the backward pass. With "
            f"the strategies gradient_only and grappa a convolution can run once in a step: what it reads of other "
            f"ranks' rows goes by the order of the calls. Leave the convolutions out of the checkpoint, or use the "
            f"strategy exchange."
        )

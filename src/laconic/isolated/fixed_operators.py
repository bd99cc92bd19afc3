"""Which convolutions are fixed matrices: the same weight for an edge in every step, whatever the rows are."""

from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing

from laconic.attach.attachment import why_no_kernel
from laconic.errors import UnsupportedModelError


def why_not_fixed(conv: MessagePassing) -> str | None:
    """Returns why a convolution is not a fixed matrix; None if it is."""
    reason = why_no_kernel(conv)
    if reason is None and isinstance(conv, GATConv | GATv2Conv):
        reason = "attention decides its weights"
    if reason is None and getattr(conv, "aggr", None) == "max":
        reason = "a maximum has no weights"
    return reason


def check_fixed_operators(model: nn.Module) -> None:
    """Raises UnsupportedModelError unless every convolution is a fixed matrix, whose edges can be weighted."""
    for name, module in model.named_modules():
        if not isinstance(module, MessagePassing):
            continue
        reason = why_not_fixed(module)
        if reason is not None:
            raise UnsupportedModelError(
                f"{name or 'the model'} is a {type(module).__name__}, whose edges correction=sweep and "
                f"normalise=whole cannot weigh: {reason}. Use correction=node or batch, or remember=True."
            )

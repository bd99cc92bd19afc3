"""Which convolutions are fixed matrices: the same weight for an edge in every step, whatever the rows are."""

from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing

from laconic.attach.attachment import why_no_kernel


def why_not_fixed(conv: MessagePassing) -> str | None:
    """Returns why a convolution is not a fixed matrix; None if it is."""
    reason = why_no_kernel(conv)
    if reason is None and isinstance(conv, GATConv | GATv2Conv):
        reason = "attention decides its weights"
    if reason is None and getattr(conv, "aggr", None) == "max":
        reason = "a maximum has no weights"
    return reason


def why_not_recompute(model: nn.Module) -> str | None:
    """Returns which layer's rows cannot be computed on another rank, and why; None if all can."""
    for name, module in model.named_modules():
        if isinstance(module, MessagePassing) and why_not_fixed(module) is not None:
            return f"{name or 'the model'} is a {type(module).__name__}, whose aggregation is no fixed matrix"
    return None

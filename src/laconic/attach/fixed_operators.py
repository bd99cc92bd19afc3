"""Which convolutions are fixed matrices: the same weight for an edge in every step, whatever the rows are."""

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

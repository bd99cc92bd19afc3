"""The seam to PyG: hangs operators and keyed dropout on an unchanged model, from outside.

attachment = attach(GraphSAGE(128, 256, 3, 40), Shard.whole(graph))
out = attachment.model(attachment.shard.x, attachment.shard.edge_index)
"""

from laconic.attach.aggregator import Aggregator, LocalAggregator
from laconic.attach.attachment import Attachment, attach, detached_copy, release, why_no_kernel
from laconic.attach.norms import is_over_nodes

__all__ = [
    "Aggregator",
    "Attachment",
    "LocalAggregator",
    "attach",
    "detached_copy",
    "is_over_nodes",
    "release",
    "why_no_kernel",
]

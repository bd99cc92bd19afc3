"""The seam to PyG: hangs operators and keyed dropout on an unchanged model, from outside.

attachment = attach(GraphSAGE(128, 256, 3, 40), Shard.whole(graph))
out = attachment.model(attachment.shard.x, attachment.shard.edge_index)
"""

from laconic.attach.aggregator import Aggregator, LocalAggregator
from laconic.attach.attachment import Attachment, attach

__all__ = ["Aggregator", "Attachment", "LocalAggregator", "attach"]

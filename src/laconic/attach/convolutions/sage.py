"""SAGEConv: x' = W_l aggregate(x_j) + W_r x (Hamilton et al., arXiv 1706.02216), by mean, sum or maximum."""

import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SAGEConv

from laconic.attach.aggregator import Linear
from laconic.attach.convolutions.base import Convolution, refuse_aggregation
from laconic.attach.convolutions.projection import add_projection, aggregate_and_project, is_plain
from laconic.attach.scope import Scope


def _refuse(conv: SAGEConv) -> str | None:
    return refuse_aggregation(conv, "mean", "add", "sum", "max")


def _forward(conv: SAGEConv, scope: Scope, x: Tensor, weighted: bool) -> Tensor:
    aggregation = Linear("mean" if conv.aggr == "mean" else "sum")
    own = conv.lin_r if conv.root_weight else None
    if conv.aggr != "max" and not conv.project:
        out = aggregate_and_project(scope.aggregator, aggregation, x, conv.lin_l, None, own=own)
    else:
        neighbours = conv.lin(x).relu() if conv.project else x
        if conv.aggr == "max":
            out = conv.lin_l(scope.aggregator.maximum(neighbours))
        else:
            out = aggregate_and_project(scope.aggregator, aggregation, neighbours, conv.lin_l, None)
        if own is not None:
            out = add_projection(out, x, own, in_place=is_plain(conv.lin_l))
    return F.normalize(out, p=2.0, dim=-1) if conv.normalize else out


SAGE = Convolution(_refuse, _forward)

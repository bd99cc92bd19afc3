"""SGConv: x' = (D^-1/2 (A + I) D^-1/2)^K x W + b (Wu et al., arXiv 1902.07153)."""

import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import SGConv

from laconic.attach.aggregator import Linear
from laconic.attach.convolutions.base import Convolution, refuse_aggregation
from laconic.attach.convolutions.projection import is_plain
from laconic.attach.scope import Scope


def _refuse(conv: SGConv) -> str | None:
    return refuse_aggregation(conv, "add", "sum")


def _forward(conv: SGConv, scope: Scope, x: Tensor, weighted: bool) -> Tensor:
    aggregation = Linear("gcn", weighted, self_loops=conv.add_self_loops)
    aggregator = scope.aggregator
    out: Tensor
    project_first = (
        is_plain(conv.lin) and not conv.cached and not aggregator.aggregates_first(x, conv.lin.weight.shape[0])
    )
    if project_first:
        out = F.linear(x, conv.lin.weight)
        for _ in range(conv.K):
            out = aggregator.linear(aggregation, out)
        return out if conv.lin.bias is None else out + conv.lin.bias
    if conv._cached_x is not None:
        x = conv._cached_x.detach()
    else:
        for _ in range(conv.K):
            x = aggregator.linear(aggregation, x)
        # Where ranks share the graph these are one rank's rows; what is remembered is remembered anyway.
        if conv.cached and not aggregator.is_shared:
            conv._cached_x = x
    out = conv.lin(x)
    return out


SGC = Convolution(_refuse, _forward)

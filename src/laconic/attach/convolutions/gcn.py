"""GCNConv: x' = D^-1/2 (A + I) D^-1/2 x W + b (Kipf and Welling, arXiv 1609.02907)."""

from torch import Tensor
from torch_geometric.nn import GCNConv

from laconic.attach.aggregator import Linear
from laconic.attach.convolutions.base import Convolution, refuse_aggregation
from laconic.attach.convolutions.projection import aggregate_and_project, is_plain
from laconic.attach.scope import Scope


def _refuse(conv: GCNConv) -> str | None:
    return refuse_aggregation(conv, "add", "sum")


def _forward(conv: GCNConv, scope: Scope, x: Tensor, weighted: bool) -> Tensor:
    if conv.normalize:
        # PyG gives "improved" loops their weight of 2 only beside edge weights; without those every loop weighs 1.
        loop_weight = 2.0 if conv.improved and weighted else 1.0
        aggregation = Linear("gcn", weighted, self_loops=conv.add_self_loops, loop_weight=loop_weight)
    else:
        aggregation = Linear("sum", weighted)
    if not is_plain(conv.lin) or conv.lin.bias is not None:
        # PyG projects first: for a layer that is more than a matrix the order is not ours to choose.
        out = scope.aggregator.linear(aggregation, conv.lin(x))
        if conv.bias is not None:
            out = out + conv.bias
        return out
    return aggregate_and_project(scope.aggregator, aggregation, x, conv.lin, conv.bias)


GCN = Convolution(_refuse, _forward)

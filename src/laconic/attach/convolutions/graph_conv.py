"""GraphConv: x' = W_1 x + W_2 aggregate(e_ji x_j) (Morris et al., arXiv 1810.02244), by sum or mean."""

from torch import Tensor
from torch_geometric.nn import GraphConv

from laconic.attach.aggregator import Linear
from laconic.attach.convolutions.base import Convolution, refuse_aggregation
from laconic.attach.convolutions.projection import add_projection, aggregate_and_project, is_plain
from laconic.attach.scope import Scope


def _refuse(conv: GraphConv) -> str | None:
    return refuse_aggregation(conv, "add", "sum", "mean")


def _forward(conv: GraphConv, scope: Scope, x: Tensor, weighted: bool) -> Tensor:
    aggregation = Linear("mean" if conv.aggr == "mean" else "sum", weighted)
    out = aggregate_and_project(scope.aggregator, aggregation, x, conv.lin_rel, None)
    return add_projection(out, x, conv.lin_root, in_place=is_plain(conv.lin_rel))


GRAPH_CONV = Convolution(_refuse, _forward)

"""GraphConv: x' = W_1 x + W_2 aggregate(e_ji x_j) (Morris et al., arXiv 1810.02244), by sum or mean."""

from torch import Tensor
from torch_geometric.nn import GraphConv

from laconic.attach.aggregator import Linear
from laconic.attach.convolutions.base import Convolution, refuse_aggregation
from laconic.attach.convolutions.projection import aggregate_and_project
from laconic.attach.scope import Scope


def _refuse(conv: GraphConv) -> str | None:
    return refuse_aggregation(conv, "add", "sum", "mean")


def _forward(conv: GraphConv, scope: Scope, x: Tensor, weighted: bool) -> Tensor:
    aggregation = Linear("mean" if conv.aggr == "mean" else "sum", weighted)
    return aggregate_and_project(scope.aggregator, aggregation, x, conv.lin_rel, None, own=conv.lin_root)


GRAPH_CONV = Convolution(_refuse, _forward)

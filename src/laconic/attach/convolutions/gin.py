"""GINConv: x' = h((1 + eps) x + sum x_j) (Xu et al., arXiv 1810.00826)."""

from torch import Tensor
from torch.nn import Parameter
from torch_geometric.nn import GINConv

from laconic.attach.aggregator import Linear
from laconic.attach.convolutions.base import Convolution, refuse_aggregation
from laconic.attach.convolutions.projection import aggregate_into
from laconic.attach.scope import Scope


def _refuse(conv: GINConv) -> str | None:
    return refuse_aggregation(conv, "add", "sum")


def _forward(conv: GINConv, scope: Scope, x: Tensor, weighted: bool) -> Tensor:
    if isinstance(conv.eps, Parameter):
        sums = scope.aggregator.linear(Linear("sum"), x)
        out: Tensor = conv.nn(sums + (1 + conv.eps) * x[: len(sums)])
        return out
    # A fixed eps is the operator's diagonal: no second pass over the rows, and the operator is linear as a whole.
    return aggregate_into(scope.aggregator, Linear("sum", own_weight=1.0 + conv.eps.item()), x, conv.nn)


GIN = Convolution(_refuse, _forward)

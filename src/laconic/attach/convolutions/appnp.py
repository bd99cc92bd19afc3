"""APPNP: x <- (1 - alpha) D^-1/2 (A + I) D^-1/2 x + alpha h, K times (Gasteiger et al., arXiv 1810.05997)."""

import numpy as np
from torch import Tensor
from torch_geometric.nn import APPNP as PygAppnp

from laconic.attach.aggregator import Linear
from laconic.attach.convolutions.base import Convolution, refuse_aggregation
from laconic.attach.scope import Scope


def _refuse(conv: PygAppnp) -> str | None:
    return refuse_aggregation(conv, "add", "sum")


def _forward(conv: PygAppnp, scope: Scope, x: Tensor, weighted: bool) -> Tensor:
    if conv.normalize:
        aggregation = Linear("gcn", weighted, self_loops=conv.add_self_loops)
    else:
        aggregation = Linear("sum", weighted)
    h = x
    keys: list[np.uint64] = []
    for _ in range(conv.K):
        if conv.dropout > 0 and conv.training:
            keys.append(scope.next_key())
            propagated = scope.aggregator.linear_with_edge_dropout(aggregation, x, conv.dropout, keys)
        else:
            propagated = scope.aggregator.linear(aggregation, x)
        x = propagated * (1 - conv.alpha) + conv.alpha * h[: len(propagated)]
    return x


APPNP = Convolution(_refuse, _forward)

"""GATConv (Velickovic et al., arXiv 1710.10903) and GATv2Conv (Brody et al., arXiv 2105.14491): attention on edges."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv, GATv2Conv

from laconic.attach.aggregator import Attention
from laconic.attach.convolutions.base import Convolution, refuse_aggregation
from laconic.attach.convolutions.projection import is_plain
from laconic.attach.scope import Scope


def _refuse(conv: Any) -> str | None:
    if conv.edge_dim is not None:
        return "it takes edge features"
    if isinstance(conv.in_channels, tuple):
        return "its in_channels is a pair, for the two sides of a bipartite graph (one number is for one graph)"
    return refuse_aggregation(conv, "add", "sum")


def _forward_gat(conv: GATConv, scope: Scope, x: Tensor, weighted: bool) -> Tensor:
    aggregator, width = scope.aggregator, conv.heads * conv.out_channels
    foldable = is_plain(conv.lin) and conv.lin.bias is None
    # (x W) . att = x (W att): two thin columns per head instead of two more passes over all rows.
    if foldable and aggregator.gathers_first(x, width):
        sources = aggregator.sources(x)
        rows = conv.lin(sources).view(-1, conv.heads, conv.out_channels)
        folded = torch.cat([_fold(conv, conv.att_src), _fold(conv, conv.att_dst)])
        from_source, from_destination = F.linear(sources, folded).tensor_split(2, dim=1)
        from_destination = from_destination[: len(x)]
    else:
        own = conv.lin(x)
        rows = aggregator.sources(own).view(-1, conv.heads, conv.out_channels)
        from_source = (rows * conv.att_src).sum(dim=-1)
        from_destination = (own.view(-1, conv.heads, conv.out_channels) * conv.att_dst).sum(dim=-1)
    return _finish(conv, x, aggregator.gat(rows, from_source, from_destination, _settings(conv, scope)))


def _fold(conv: GATConv, att: Tensor) -> Tensor:
    """Returns the matrix that takes x to (x W) . att, (H, F)."""
    weight = conv.lin.weight.view(conv.heads, conv.out_channels, -1)
    folded: Tensor = (weight * att.view(conv.heads, -1, 1)).sum(1)
    return folded


def _forward_gatv2(conv: GATv2Conv, scope: Scope, x: Tensor, weighted: bool) -> Tensor:
    aggregator, width = scope.aggregator, conv.heads * conv.out_channels
    if is_plain(conv.lin_l) and aggregator.gathers_first(x, width):
        flat = conv.lin_l(aggregator.sources(x))
        own = flat[: len(x)] if conv.share_weights else conv.lin_r(x)
    else:
        projected = conv.lin_l(x)
        flat = aggregator.sources(projected)
        own = projected if conv.share_weights else conv.lin_r(x)
    sources, destinations = (rows.view(-1, conv.heads, conv.out_channels) for rows in (flat, own))
    out = aggregator.gatv2(sources, destinations, conv.att.squeeze(0), _settings(conv, scope))
    return _finish(conv, x, out)


def _settings(conv: Any, scope: Scope) -> Attention:
    dropout = conv.dropout if conv.training else 0.0
    # The call is counted whenever dropout is on, so that masks later in the model do not depend on the kernel.
    key = scope.next_key() if dropout > 0 else scope.no_key
    return Attention(conv.negative_slope, conv.add_self_loops, dropout, key)


def _finish(conv: Any, x: Tensor, out: Tensor) -> Tensor:
    out = out.reshape(-1, conv.heads * conv.out_channels) if conv.concat else out.mean(dim=1)
    if conv.res is not None:
        out = out + conv.res(x)
    return out if conv.bias is None else out + conv.bias


GAT = Convolution(_refuse, _forward_gat)
GATV2 = Convolution(_refuse, _forward_gatv2)

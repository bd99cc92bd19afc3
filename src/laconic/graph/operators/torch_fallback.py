"""Attention in torch's own operations, for tensors that our kernels do not take: those on a GPU, or in half precision.

Slower and larger (it has a buffer of edges times features), with equal results.
"""

import numpy as np
import torch
from torch import Tensor

from laconic.graph.adjacency import Adjacency
from laconic.graph.operators.dropout import drop_edges

# Shapes: R rows (destinations), S sources, E edges and self-loops, H heads, C channels per head

_SOFTMAX_FLOOR = 1e-16


def gat_by_torch(
    adjacency: Adjacency,
    x_SHC: Tensor,
    a_src_SH: Tensor,
    a_dst_RH: Tensor,
    *,
    negative_slope: float,
    self_loops: bool,
    dropout: float,
    key: np.uint64,
    node_ids: Tensor,
) -> Tensor:
    """The same as `gat_attention`."""
    sources, rows = _ends(adjacency, self_loops, x_SHC.device)
    before = a_src_SH.index_select(0, sources) + a_dst_RH.index_select(0, rows)
    alpha_EH = _softmax(torch.nn.functional.leaky_relu(before, negative_slope), rows, adjacency.num_rows)
    if dropout > 0:
        alpha_EH = drop_edges(alpha_EH, dropout, key, node_ids[sources.cpu()], node_ids[rows.cpu()])
    return _sum_values(x_SHC, alpha_EH, sources, rows, adjacency.num_rows)


def gatv2_by_torch(
    adjacency: Adjacency,
    x_l_SHC: Tensor,
    x_r_RHC: Tensor,
    att_HC: Tensor,
    *,
    negative_slope: float,
    self_loops: bool,
    dropout: float,
    key: np.uint64,
    node_ids: Tensor,
) -> Tensor:
    """The same as `gatv2_attention`."""
    sources, rows = _ends(adjacency, self_loops, x_l_SHC.device)
    before = x_l_SHC.index_select(0, sources) + x_r_RHC.index_select(0, rows)
    logits_EH = (torch.nn.functional.leaky_relu(before, negative_slope) * att_HC).sum(dim=-1)
    alpha_EH = _softmax(logits_EH, rows, adjacency.num_rows)
    if dropout > 0:
        alpha_EH = drop_edges(alpha_EH, dropout, key, node_ids[sources.cpu()], node_ids[rows.cpu()])
    return _sum_values(x_l_SHC, alpha_EH, sources, rows, adjacency.num_rows)


def _ends(adjacency: Adjacency, self_loops: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    sources = torch.from_numpy(adjacency.indices.astype(np.int64))
    rows = torch.from_numpy(adjacency.row_of_edge.astype(np.int64))
    if self_loops:
        kept, own = sources != rows, torch.arange(min(adjacency.num_rows, adjacency.num_columns))
        sources, rows = torch.cat([sources[kept], own]), torch.cat([rows[kept], own])
    return sources.to(device), rows.to(device)


def _softmax(logits_EH: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    index = rows.unsqueeze(1).expand_as(logits_EH)
    zeros = logits_EH.new_zeros(num_rows, logits_EH.shape[1])
    peak = zeros.scatter_reduce(0, index, logits_EH.detach(), "amax", include_self=False)
    weights = (logits_EH - peak.index_select(0, rows)).exp()
    total = zeros.index_add(0, rows, weights) + _SOFTMAX_FLOOR
    return weights / total.index_select(0, rows)


def _sum_values(x_SHC: Tensor, alpha_EH: Tensor, sources: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    values = alpha_EH.unsqueeze(-1) * x_SHC.index_select(0, sources)
    # Of the values' dtype: under autocast that is wider than x's.
    return values.new_zeros(num_rows, *values.shape[1:]).index_add(0, rows, values)

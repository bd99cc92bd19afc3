"""INTERIM (replaced by the kernels' version when it lands): attention in plain torch operations."""

import numpy as np
import torch
from torch import Tensor

from laconic.graph.adjacency import Adjacency
from laconic.graph.operators.dropout import drop_edges


def gat_attention(
    adjacency: Adjacency,
    x: Tensor,
    a_src: Tensor,
    a_dst: Tensor,
    *,
    negative_slope: float,
    self_loops: bool,
    dropout: float = 0.0,
    key: int = 0,
    node_ids: Tensor | None = None,
) -> Tensor:
    sources, rows = _edges(adjacency, self_loops)
    logits = torch.nn.functional.leaky_relu(a_src[sources] + a_dst[rows], negative_slope)
    return _weighted(adjacency.num_rows, x, logits, sources, rows, dropout, key, node_ids)


def gatv2_attention(
    adjacency: Adjacency,
    x_l: Tensor,
    x_r: Tensor,
    att: Tensor,
    *,
    negative_slope: float,
    self_loops: bool,
    dropout: float = 0.0,
    key: int = 0,
    node_ids: Tensor | None = None,
) -> Tensor:
    sources, rows = _edges(adjacency, self_loops)
    logits = (torch.nn.functional.leaky_relu(x_l[sources] + x_r[rows], negative_slope) * att).sum(-1)
    return _weighted(adjacency.num_rows, x_l, logits, sources, rows, dropout, key, node_ids)


def _edges(adjacency: Adjacency, self_loops: bool) -> tuple[Tensor, Tensor]:
    sources = torch.from_numpy(adjacency.indices.astype(np.int64))
    rows = torch.from_numpy(adjacency.row_of_edge.astype(np.int64))
    if self_loops:
        kept, own = sources != rows, torch.arange(adjacency.num_rows)
        sources, rows = torch.cat([sources[kept], own]), torch.cat([rows[kept], own])
    return sources, rows


def _weighted(
    n: int, x: Tensor, logits: Tensor, sources: Tensor, rows: Tensor, dropout: float, key: int, ids: Tensor | None
) -> Tensor:
    index = rows.unsqueeze(1).expand_as(logits)
    peak = logits.new_full((n, logits.shape[1]), -torch.inf).scatter_reduce(0, index, logits.detach(), "amax")
    e = (logits - peak[rows]).exp()
    alpha = e / (torch.zeros_like(peak).index_add(0, rows, e)[rows] + 1e-16)
    if dropout > 0:
        assert ids is not None
        alpha = drop_edges(alpha, dropout, np.uint64(key), ids[sources], ids[rows])
    return x.new_zeros(n, *x.shape[1:]).index_add(0, rows, alpha.unsqueeze(-1) * x[sources])

"""Attention over in-neighbours as differentiable functions: GAT (arXiv 1710.10903) and GATv2 (arXiv 2105.14491).

out = gat_attention(adjacency, x, a_src, a_dst, negative_slope=0.2, self_loops=True)      # (rows, heads, channels)
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from laconic.graph.adjacency import Adjacency
from laconic.graph.operators.attention_setting import AttentionSetting
from laconic.graph.operators.gat import Gat
from laconic.graph.operators.gatv2 import GatV2
from laconic.graph.operators.torch_fallback import gat_by_torch, gatv2_by_torch

# Shapes: R rows (destinations), S sources, E edges, H heads, C channels per head

# Torch leaves `apply` untyped.
_gat: Callable[..., Tensor] = Gat.apply
_gatv2: Callable[..., Tensor] = GatV2.apply


def gat_attention(
    adjacency: Adjacency,
    x_SHC: Tensor,
    a_src_SH: Tensor,
    a_dst_RH: Tensor,
    *,
    negative_slope: float,
    self_loops: bool,
    dropout: float = 0.0,
    key: int | np.uint64 = 0,
    node_ids: Tensor | None = None,
) -> Tensor:
    """Returns for each row the sum of its sources' x, weighted by a softmax of leaky_relu(a_src + a_dst); (R, H, C).

    Args:
        self_loops: give each row one self-loop, in place of those among the edges. Where rows and sources differ in
            number, row r stands for the same node as source r.
        dropout: share of the weights to drop, after the softmax; a weight is kept or not by `key`, the end points'
            `node_ids` and the head. Duplicate edges are kept or dropped together.
        node_ids: number of each source in the whole graph, (S,), of which the first R are the rows'; 0, 1, ... if None.
    """
    _check_rows(adjacency, x_SHC, a_dst_RH)
    setting = AttentionSetting.of(adjacency, negative_slope, self_loops, dropout, key, node_ids)
    if _has_kernel(x_SHC):
        return _gat(x_SHC, a_src_SH, a_dst_RH, setting)
    return gat_by_torch(adjacency, x_SHC, a_src_SH, a_dst_RH, **setting.as_keywords())


def gatv2_attention(
    adjacency: Adjacency,
    x_l_SHC: Tensor,
    x_r_RHC: Tensor,
    att_HC: Tensor,
    *,
    negative_slope: float,
    self_loops: bool,
    dropout: float = 0.0,
    key: int | np.uint64 = 0,
    node_ids: Tensor | None = None,
) -> Tensor:
    """Returns for each row the sum of its sources' x_l, weighted by a softmax of att . leaky_relu(x_l + x_r).

    Arguments and result are as in `gat_attention`.
    """
    _check_rows(adjacency, x_l_SHC, x_r_RHC)
    setting = AttentionSetting.of(adjacency, negative_slope, self_loops, dropout, key, node_ids)
    if _has_kernel(x_l_SHC):
        return _gatv2(x_l_SHC, x_r_RHC, att_HC, setting)
    return gatv2_by_torch(adjacency, x_l_SHC, x_r_RHC, att_HC, **setting.as_keywords())


def _check_rows(adjacency: Adjacency, sources: Tensor, destinations: Tensor) -> None:
    # The kernels do not check what they read.
    given, expected = (len(sources), len(destinations)), (adjacency.num_columns, adjacency.num_rows)
    assert given == expected, f"{given} sources and rows for {expected}"


def _has_kernel(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)

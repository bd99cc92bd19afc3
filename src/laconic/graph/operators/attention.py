"""Attention over in-neighbours as differentiable functions: GAT (arXiv 1710.10903) and GATv2 (arXiv 2105.14491).

setting = AttentionSetting(adjacency, negative_slope=0.2, self_loops=True)
out = gat_attention(setting, x, a_src, a_dst)      # (rows, heads, channels)
"""

from collections.abc import Callable

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


def gat_attention(setting: AttentionSetting, x_SHC: Tensor, a_src_SH: Tensor, a_dst_RH: Tensor) -> Tensor:
    """Returns for each row the sum of its sources' x, weighted by a softmax of leaky_relu(a_src + a_dst); (R, H, C)."""
    _check_rows(setting.adjacency, x_SHC, a_dst_RH)
    if _has_kernel(x_SHC):
        return _gat(x_SHC, a_src_SH, a_dst_RH, setting)
    return gat_by_torch(setting, x_SHC, a_src_SH, a_dst_RH)


def gatv2_attention(setting: AttentionSetting, x_l_SHC: Tensor, x_r_RHC: Tensor, att_HC: Tensor) -> Tensor:
    """Returns for each row the sum of its sources' x_l, weighted by a softmax of att . leaky_relu(x_l + x_r)."""
    _check_rows(setting.adjacency, x_l_SHC, x_r_RHC)
    if _has_kernel(x_l_SHC):
        return _gatv2(x_l_SHC, x_r_RHC, att_HC, setting)
    return gatv2_by_torch(setting, x_l_SHC, x_r_RHC, att_HC)


def _check_rows(adjacency: Adjacency, sources: Tensor, destinations: Tensor) -> None:
    # The kernels do not check what they read.
    given, expected = (len(sources), len(destinations)), (adjacency.num_columns, adjacency.num_rows)
    assert given == expected, f"{given} sources and rows for {expected}"


def _has_kernel(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)

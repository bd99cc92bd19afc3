"""Attention in torch's own operations, for tensors that our kernels do not take: those on a GPU, or in half precision.

Slower and larger (it has a buffer of edges times features), with equal results.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from laconic.graph.operators.attention_setting import AttentionSetting
from laconic.graph.operators.dropout import drop_edges

# Shapes: R rows (destinations), S sources, E edges and self-loops, H heads, C channels per head

_SOFTMAX_FLOOR = 1e-16


def gat_by_torch(setting: AttentionSetting, x_SHC: Tensor, a_src_SH: Tensor, a_dst_RH: Tensor) -> Tensor:
    """The same as `gat_attention`."""
    sources, rows = _ends(setting, x_SHC.device)
    before_EH = a_src_SH.index_select(0, sources) + a_dst_RH.index_select(0, rows)
    return _sum_weighted(setting, x_SHC, leaky_relu(before_EH, setting.negative_slope), sources, rows)


def gatv2_by_torch(setting: AttentionSetting, x_l_SHC: Tensor, x_r_RHC: Tensor, att_HC: Tensor) -> Tensor:
    """The same as `gatv2_attention`."""
    sources, rows = _ends(setting, x_l_SHC.device)
    before_EHC = x_l_SHC.index_select(0, sources) + x_r_RHC.index_select(0, rows)
    logits_EH = (leaky_relu(before_EHC, setting.negative_slope) * att_HC).sum(dim=-1)
    return _sum_weighted(setting, x_l_SHC, logits_EH, sources, rows)


def _ends(setting: AttentionSetting, device: torch.device) -> tuple[Tensor, Tensor]:
    adjacency = setting.adjacency
    sources = torch.from_numpy(adjacency.indices.astype(np.int64))
    rows = torch.from_numpy(adjacency.row_of_edge.astype(np.int64))
    if setting.self_loops:
        kept, own = sources != rows, torch.arange(setting.num_loops)
        sources, rows = torch.cat([sources[kept], own]), torch.cat([rows[kept], own])
    return sources.to(device), rows.to(device)


def _sum_weighted(setting: AttentionSetting, x_SHC: Tensor, logits_EH: Tensor, sources: Tensor, rows: Tensor) -> Tensor:
    num_rows = setting.adjacency.num_rows
    alpha_EH = _softmax(logits_EH, rows, num_rows)
    if setting.dropout > 0:
        ends = (setting.numbers[end.cpu()] for end in (sources, rows))
        alpha_EH = drop_edges(alpha_EH, setting.dropout, np.uint64(setting.key), *ends)
    values = alpha_EH.unsqueeze(-1) * x_SHC.index_select(0, sources)
    # Of the values' dtype: under autocast that is wider than x's.
    return values.new_zeros(num_rows, *values.shape[1:]).index_add(0, rows, values)


def _softmax(logits_EH: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    index = rows.unsqueeze(1).expand_as(logits_EH)
    zeros = logits_EH.new_zeros(num_rows, logits_EH.shape[1])
    peak = zeros.scatter_reduce(0, index, logits_EH.detach(), "amax", include_self=False)
    weights = (logits_EH - peak.index_select(0, rows)).exp()
    total = zeros.index_add(0, rows, weights) + _SOFTMAX_FLOOR
    return weights / total.index_select(0, rows)

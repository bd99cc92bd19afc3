"""GATv2's attention for autograd: calls the kernels, forward and backward."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from laconic.graph.operators.attention_setting import AttentionSetting
from laconic.kernels.gatv2 import gatv2_backward_rows, gatv2_backward_sources, gatv2_forward

# Shapes: R rows (destinations), S sources, H heads, C channels per head, F = H C


class GatV2(torch.autograd.Function):
    """(x_l_SHC, x_r_RHC, att_HC, setting) -> out_RHC."""

    @staticmethod
    def forward(ctx: Any, x_l_SHC: Tensor, x_r_RHC: Tensor, att_HC: Tensor, setting: AttentionSetting) -> Tensor:
        x_l, x_r, att = (tensor.contiguous().view(-1, att_HC.numel()) for tensor in (x_l_SHC, x_r_RHC, att_HC))
        out = torch.empty_like(x_r)
        peak, inverse = (x_r.new_empty(len(x_r), len(att_HC)) for _ in range(2))
        dtype = x_l.numpy().dtype
        setting.use_threads(x_l.shape[1])
        gatv2_forward(
            setting.by_row,
            x_l.numpy(),
            x_r.numpy(),
            att.numpy(),
            setting.slope(dtype),
            setting.edge_dropout(dtype),
            out.numpy(),
            peak.numpy(),
            inverse.numpy(),
        )
        out_RHC = out.view(-1, *att_HC.shape)
        ctx.setting = setting
        ctx.save_for_backward(x_l_SHC, x_r_RHC, att_HC, out_RHC, peak, inverse)
        return out_RHC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        wants_l, wants_r, wants_att, _ = ctx.needs_input_grad
        *tensors, peak, inverse = ctx.saved_tensors
        shape = tensors[2].shape
        x_l, x_r, att, out, g_out = (tensor.contiguous().view(-1, shape.numel()) for tensor in (*tensors, grads[0]))
        setting: AttentionSetting = ctx.setting
        dtype, by_row = x_l.numpy().dtype, setting.by_row
        slope = setting.slope(dtype)
        wants_rows = wants_r or wants_att
        per_edge = x_l.new_empty(setting.num_terms if wants_l else 0, 2 * peak.shape[1])
        g_r = torch.empty_like(x_r) if wants_rows else x_r[:0]
        # One sum per chunk of rows, added in order: the number of threads does not change it.
        g_att = x_r.new_empty(len(by_row.bounds) - 1 if wants_rows else 0, x_r.shape[1])
        setting.use_threads(x_l.shape[1])
        gatv2_backward_rows(
            by_row,
            x_l.numpy(),
            x_r.numpy(),
            att.numpy(),
            out.numpy(),
            peak.numpy(),
            inverse.numpy(),
            g_out.numpy(),
            slope,
            setting.edge_dropout(dtype),
            (wants_l, wants_rows),
            per_edge.numpy(),
            g_r.numpy(),
            g_att.numpy(),
        )
        g_l = None
        if wants_l:
            g_l = torch.empty_like(x_l)
            _by_source(setting, x_l, x_r, att, g_out, per_edge, g_l)
            g_l = g_l.view(-1, *shape)
        return g_l, g_r.view(-1, *shape) if wants_r else None, g_att.sum(dim=0).view(shape) if wants_att else None, None


def _by_source(
    setting: AttentionSetting, x_l: Tensor, x_r: Tensor, att: Tensor, g_out: Tensor, per_edge: Tensor, g_l: Tensor
) -> None:
    gatv2_backward_sources(
        setting.by_source,
        x_l.numpy(),
        x_r.numpy(),
        att.numpy(),
        g_out.numpy(),
        per_edge.numpy(),
        setting.slope(x_l.numpy().dtype),
        g_l.numpy(),
    )

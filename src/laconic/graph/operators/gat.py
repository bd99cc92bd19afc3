"""GAT's attention for autograd: calls the kernels, forward and backward."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from laconic.graph.operators.attention_setting import AttentionSetting
from laconic.kernels.gat import gat_backward_rows, gat_backward_sources, gat_forward, gat_pack

# Shapes: R rows (destinations), S sources, H heads, C channels per head, F = H C


class Gat(torch.autograd.Function):
    """(x_SHC, a_src_SH, a_dst_RH, setting) -> out_RHC."""

    @staticmethod
    def forward(ctx: Any, x_SHC: Tensor, a_src_SH: Tensor, a_dst_RH: Tensor, setting: AttentionSetting) -> Tensor:
        x, a_src, a_dst = x_SHC.flatten(1).contiguous(), a_src_SH.contiguous(), a_dst_RH.contiguous()
        out = x.new_empty(setting.adjacency.num_rows, x.shape[1])
        peak, inverse = torch.empty_like(a_dst), torch.empty_like(a_dst)
        dtype = x.numpy().dtype
        setting.use_threads(x.shape[1])
        gat_forward(
            setting.by_row,
            x.numpy(),
            a_src.numpy(),
            a_dst.numpy(),
            setting.slope(dtype),
            setting.edge_dropout(dtype),
            out.numpy(),
            peak.numpy(),
            inverse.numpy(),
        )
        out_RHC = out.view(-1, *x_SHC.shape[1:])
        ctx.setting = setting
        ctx.save_for_backward(x_SHC, a_src_SH, a_dst_RH, out_RHC, peak, inverse)
        return out_RHC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        wants_x, wants_src, wants_dst, _ = ctx.needs_input_grad
        wants_logits = wants_src or wants_dst
        x_SHC, a_src, a_dst, out_RHC, peak, inverse = (tensor.contiguous() for tensor in ctx.saved_tensors)
        x, out, g_out = x_SHC.flatten(1), out_RHC.flatten(1), grads[0].contiguous().flatten(1)
        setting: AttentionSetting = ctx.setting
        dtype = x.numpy().dtype
        packed = peak.new_empty(len(peak), 4 * peak.shape[1])
        g_x = torch.empty_like(x) if wants_x else x[:0]
        g_src = torch.empty_like(a_src) if wants_logits else a_src[:0]
        g_edge = x.new_empty(setting.num_terms if wants_logits else 0, a_src.shape[1])
        setting.use_threads(x.shape[1])
        gat_pack(a_dst.numpy(), peak.numpy(), inverse.numpy(), out.numpy(), g_out.numpy(), packed.numpy())
        gat_backward_sources(
            setting.by_source,
            x.numpy(),
            a_src.numpy(),
            packed.numpy(),
            g_out.numpy(),
            setting.slope(dtype),
            setting.edge_dropout(dtype),
            (wants_x, wants_logits),
            g_x.numpy(),
            g_src.numpy(),
            g_edge.numpy(),
        )
        g_dst = None
        if wants_dst:
            g_dst = torch.empty_like(a_dst)
            gat_backward_rows(setting.by_row, g_edge.numpy(), g_dst.numpy())
        return g_x.view(x_SHC.shape) if wants_x else None, g_src if wants_src else None, g_dst, None

"""Keyed dropout as a differentiable function: the mask of a row depends on a key and the row's identity alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.graph.operators.linear import FloatArray, LinearOperator
from laconic.graph.threads import use_torch_threads
from laconic.kernels.dropout import drop_edge_rows, drop_node_rows
from laconic.kernels.keyed import drop_threshold

# Shapes: N rows, F elements per row


def drop_nodes(x: Tensor, probability: float, key: np.uint64, node_ids: Tensor) -> Tensor:
    """Returns x with a share `probability` of its elements zeroed, the rest scaled up.

    Args:
        x: any shape whose first dim is rows.
        node_ids: number of each row in the whole graph: the same node gets the same mask on any rank.
    """
    return _drop(x, probability, key, node_ids, None)


def drop_edges(x: Tensor, probability: float, key: np.uint64, sources: Tensor, destinations: Tensor) -> Tensor:
    """Like `drop_nodes` for a tensor with a row per edge, by the edge's end points in the whole graph."""
    return _drop(x, probability, key, sources, destinations)


def drop_entries(
    operator: LinearOperator,
    probability: float,
    key: np.uint64,
    source_ids: Tensor,
    *,
    row_ids: Tensor | None = None,
) -> LinearOperator:
    """Returns `operator` with a share of its entries zeroed and the rest scaled up; entries are keyed as edges.

    Args:
        source_ids: number of each column in the whole graph.
        row_ids: the same for each row; by default the first of the columns'.
    """
    adjacency = operator.adjacency
    row_ids = source_ids[: adjacency.num_rows] if row_ids is None else row_ids
    sources = source_ids[torch.from_numpy(adjacency.indices.astype(np.int64))]
    destinations = row_ids[torch.from_numpy(adjacency.row_of_edge.astype(np.int64))]

    def drop(entries: FloatArray, *ends: Tensor) -> FloatArray:
        dropped: FloatArray = _apply_mask(torch.from_numpy(entries), probability, key, *ends).numpy()
        return dropped

    values = np.ones(adjacency.num_edges) if operator.values is None else operator.values
    diagonal = None if operator.diagonal is None else drop(operator.diagonal, row_ids, row_ids)
    return replace(operator, values=drop(values, sources, destinations), diagonal=diagonal)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, probability: float, key: np.uint64, ids: Tensor, destinations: Tensor | None
    ) -> Tensor:
        ctx.mask = (probability, key, ids, destinations)
        return _apply_mask(x, *ctx.mask)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        # The mask is linear and its own transpose, so the gradient goes through the very same function.
        return _drop(grads[0], *ctx.mask), None, None, None, None


# Torch leaves `apply` untyped.
_drop: Callable[..., Tensor] = _Drop.apply


def _apply_mask(x: Tensor, probability: float, key: np.uint64, ids: Tensor, destinations: Tensor | None) -> Tensor:
    if x.numel() == 0:
        return x.clone()
    threshold = drop_threshold(probability)
    scale = 0.0 if probability >= 1 else 1.0 / (1.0 - probability)
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        # The same mask, made here on ones and moved: hashing needs unsigned 64-bit arithmetic, which torch lacks.
        ones = torch.ones(x.shape, dtype=torch.float32)
        cpu_ids = (ids.cpu(), None if destinations is None else destinations.cpu())
        return x * _apply_mask(ones, probability, key, *cpu_ids).to(device=x.device, dtype=x.dtype)
    use_torch_threads(x.numel())
    rows = x.detach().reshape(x.shape[0], -1).contiguous()
    out = torch.empty_like(rows)
    factor = rows.numpy().dtype.type(scale)
    if destinations is None:
        drop_node_rows(rows.numpy(), out.numpy(), ids.numpy(), key, threshold, factor)
    else:
        drop_edge_rows(rows.numpy(), out.numpy(), ids.numpy(), destinations.numpy(), key, threshold, factor)
    return out.view(x.shape)

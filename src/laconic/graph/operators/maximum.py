"""Maximum over in-neighbours as a differentiable function."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laconic.graph.adjacency import Adjacency
from laconic.graph.threads import use_torch_threads
from laconic.kernels.balance import balanced_rows
from laconic.kernels.maximum import neighbour_maximum, neighbour_maximum_backward

# Shapes: R rows (destinations), S sources, F features


def maximum(adjacency: Adjacency, x: Tensor) -> Tensor:
    """Returns the largest value among in-neighbours for each element, (R, F); 0 for a row without edges.

    The gradient goes to the winner; of equal ones to the first. (PyG spreads it evenly over equal ones.)
    """
    # The kernel does not check what it reads.
    assert x.shape[0] == adjacency.num_columns, f"{x.shape[0]} rows for {adjacency.num_columns} columns"
    if x.device.type != "cpu":
        return maximum_by_torch(adjacency, x)
    if x.dtype not in (torch.float32, torch.float64):
        return maximum(adjacency, x.float()).to(x.dtype)
    return _maximum(x, adjacency)


def maximum_by_torch(adjacency: Adjacency, x: Tensor) -> Tensor:
    """The same in torch's own operations, for tensors that are not on the CPU."""
    sources = torch.from_numpy(adjacency.indices).to(x.device, torch.int64)
    rows = torch.from_numpy(adjacency.row_of_edge).to(x.device, torch.int64)
    messages = x.index_select(0, sources)
    index = rows.unsqueeze(1).expand_as(messages)
    out = x.new_zeros(adjacency.num_rows, x.shape[1])
    return out.scatter_reduce(0, index, messages, reduce="amax", include_self=False)


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, adjacency: Adjacency) -> Tensor:
        use_torch_threads(adjacency.num_edges * x.shape[1])
        out = torch.empty(adjacency.num_rows, x.shape[1], dtype=x.dtype)
        winner = torch.empty(out.shape, dtype=torch.int32)
        neighbour_maximum(
            balanced_rows(adjacency.indptr),
            adjacency.indptr,
            adjacency.indices,
            x.detach().contiguous().numpy(),
            out.numpy(),
            winner.numpy(),
        )
        ctx.adjacency = adjacency
        ctx.save_for_backward(winner)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (winner,) = ctx.saved_tensors
        across = ctx.adjacency.transposed
        use_torch_threads(across.num_edges * winner.shape[1])
        g_x = torch.empty(across.num_rows, winner.shape[1], dtype=grads[0].dtype)
        neighbour_maximum_backward(
            balanced_rows(across.indptr),
            across.indptr,
            across.indices,
            across.edge_order,
            ctx.adjacency.indptr,
            winner.numpy(),
            grads[0].contiguous().numpy(),
            g_x.numpy(),
        )
        return g_x, None


# Torch leaves `apply` untyped.
_maximum: Callable[..., Tensor] = _Maximum.apply

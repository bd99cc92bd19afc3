"""Collectives on GPU, by NCCL. They follow torch's documentation; they were never run."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from laconic.comm.transport.base import Reduction

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
# Torch 2.13 renamed it, and warns about the old name.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_reduce(tensor: Tensor, op: Reduction) -> Any:
    """Starts to replace `tensor` by its sum, maximum or minimum over ranks."""
    if tensor.dtype == torch.bool:
        # As numbers, 256 ranks that say yes would add up to no.
        return dist.all_reduce(tensor.view(torch.uint8), _REDUCTIONS["max" if op == "sum" else op], async_op=True)
    return dist.all_reduce(tensor, _REDUCTIONS[op], async_op=True)


def all_gather(out: Tensor, data: Tensor) -> Any:
    """Starts to fill `out` with the bytes of all ranks."""
    return _all_gather(out, data, async_op=True)


def all_to_all(out: Tensor, out_sizes: list[int], data: Tensor, sizes: list[int]) -> Any:
    """Starts to send `sizes[r]` bytes to each rank r."""
    return dist.all_to_all_single(out, data, out_sizes, sizes, async_op=True)


def broadcast(tensor: Tensor, root: int) -> Any:
    """Starts to replace the bytes of `tensor` by those of rank `root`."""
    return dist.broadcast(tensor, root, async_op=True)

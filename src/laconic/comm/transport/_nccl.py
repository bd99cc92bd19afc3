"""Collectives on GPU, by NCCL. They follow torch's documentation; they were never run."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from laconic.comm.transport._messages import as_bytes
from laconic.comm.transport.base import Reduction

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def all_reduce(tensor: Tensor, op: Reduction) -> Any:
    """Starts to replace `tensor` by its sum, maximum or minimum over ranks."""
    if tensor.dtype == torch.bool:
        # As numbers, 256 ranks that say yes would add up to no.
        return dist.all_reduce(tensor.view(torch.uint8), _REDUCTIONS["max" if op == "sum" else op], async_op=True)
    return dist.all_reduce(tensor, _REDUCTIONS[op], async_op=True)


def all_gather(targets: Sequence[Tensor], data: Tensor) -> Any:
    """Starts to fill `targets[r]` with the tensor of each rank r."""
    return dist.all_gather([as_bytes(target) for target in targets], as_bytes(data), async_op=True)


def all_to_all(out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]) -> Any:
    """Starts to send `sizes[r]` rows of `data` to each rank r."""
    row_bytes = data.shape[1:].numel() * data.itemsize
    come, go = [size * row_bytes for size in out_sizes], [size * row_bytes for size in sizes]
    return dist.all_to_all_single(as_bytes(out), as_bytes(data), come, go, async_op=True)


def broadcast(tensor: Tensor, root: int) -> Any:
    """Starts to replace `tensor` by the one of rank `root`."""
    return dist.broadcast(as_bytes(tensor), root, async_op=True)

"""Many small tensors travel as few large ones."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.pending import Pending

# Gradients travel together up to this size: large enough that starting a message costs nothing beside it, small enough
# that one is summed while the next travels.
BUCKET_BYTES = 25 << 20


def exact_means(communicator: Communicator, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Returns the mean over ranks of each tensor.

    Traffic: an all_reduce for each bucket.
    """

    return in_buckets(
        tensors, lambda flat: communicator.start_all_reduce(flat).then(lambda total: total / communicator.num_ranks)
    )


def in_buckets(tensors: Sequence[Tensor], start: Callable[[Tensor], Pending[Tensor]]) -> list[Tensor]:
    """Returns what becomes of each tensor when all are reduced as parts of flat buckets.

    Args:
        start: starts to reduce a bucket.
    """
    under_way = [
        (numbers, start(torch.cat([tensors[number].flatten() for number in numbers]))) for numbers in buckets(tensors)
    ]
    results: dict[int, Tensor] = {}
    for numbers, pending in under_way:
        parts = torch.split(pending.wait(), [tensors[number].numel() for number in numbers])
        for number, part in zip(numbers, parts, strict=True):
            results[number] = part.view(tensors[number].shape)
    return [results[number] for number in range(len(tensors))]


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yields numbers of tensors of one dtype, in order: one alone, or at most BUCKET_BYTES."""
    by_dtype: dict[torch.dtype, list[int]] = {}
    for number, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype, []).append(number)
    for group in by_dtype.values():
        bucket: list[int] = []
        num_bytes = 0
        for number in group:
            if bucket and num_bytes + tensors[number].nbytes > BUCKET_BYTES:
                yield bucket
                bucket, num_bytes = [], 0
            bucket.append(number)
            num_bytes += tensors[number].nbytes
        yield bucket

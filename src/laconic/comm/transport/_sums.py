"""Sums of messages: an all_reduce in one round or in two, a reduce_scatter.

In one round every rank gets the whole tensor of every other. In two, rank r gets the r-th part of each, adds them up,
and sends the sum to all: 2 (P - 1) / P times the tensor, the least there is, and two messages one after the other on
any number of ranks. Sums are in rank order, so that they are the same bit by bit on all ranks and in every run.
"""

from collections.abc import Sequence

from torch import Tensor

from laconic.comm.pending import Pending
from laconic.comm.transport._combine import combine_into
from laconic.comm.transport.base import Reduction


def then_sum(exchange: Pending[None], parts: Sequence[Tensor], out: Tensor, op: Reduction) -> Pending[None]:
    """Returns the exchange, followed by the sum of what it brought.

    Args:
        exchange: brings a tensor from each rank.
        parts: where the tensors come, in rank order; used up.
        out: becomes their sum; may be one of the parts.
    """
    return exchange.then(lambda _: combine_into(out, parts, op))


def part_buffers(own: Tensor, rank: int, num_ranks: int) -> list[Tensor]:
    """Returns a tensor like `own` for the part of each rank; this rank's is `own` itself."""
    others = own.new_empty((num_ranks - 1, *own.shape)).unbind()
    return [*others[:rank], own, *others[rank:]]


def shares(num_rows: int, num_ranks: int) -> list[int]:
    """Returns how many of `num_rows` each rank adds up, as even as can be."""
    return [num_rows // num_ranks + (rank < num_rows % num_ranks) for rank in range(num_ranks)]

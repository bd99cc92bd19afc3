"""What a byte is: how many messages and bytes of payload each operation costs a rank. Pure arithmetic.

The ledger books what these functions say of the tensors that were sent, predictions what they say of tensors that will
be. A rank's own part costs nothing; a message is a part that is not empty and goes to one other rank; what a backend
adds (headers, acknowledgements, rounds) is not payload.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Traffic(NamedTuple):
    """What one operation costs one rank."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0


def all_to_all_traffic(rank: int, sent: Sequence[int], received: Sequence[int]) -> Traffic:
    """Returns the traffic of a rank that sends `sent[r]` bytes to each rank r, and gets `received[r]` from it."""
    return Traffic(*_to_others(rank, sent), *_to_others(rank, received))


def all_gather_traffic(num_ranks: int, num_bytes: int) -> Traffic:
    """Returns the traffic of each rank when all give `num_bytes` to all."""
    others = (num_ranks - 1) if num_bytes else 0
    return Traffic(others, others * num_bytes, others, others * num_bytes)


def reduce_scatter_traffic(rank: int, parts: Sequence[int]) -> Traffic:
    """Returns the traffic of a rank when each rank r gets the sum of all parts of `parts[r]` bytes."""
    others = (len(parts) - 1) if parts[rank] else 0
    return Traffic(*_to_others(rank, parts), others, others * parts[rank])


def broadcast_traffic(num_ranks: int, rank: int, root: int, num_bytes: int) -> Traffic:
    """Returns the traffic of a rank when `root` gives `num_bytes` to all."""
    if not num_bytes:
        return Traffic()
    if rank == root:
        return Traffic(sent_messages=num_ranks - 1, sent_bytes=(num_ranks - 1) * num_bytes)
    return Traffic(received_messages=1, received_bytes=num_bytes)


def all_reduce_traffic(num_ranks: int, rank: int, num_bytes: int) -> Traffic:
    """Returns a rank's share when `num_bytes` are reduced over all: 2 (P - 1) times that for the group, in whole bytes.

    That is what the best algorithm moves: each rank sums a P-th of it and hands it to the others. Where the total does
    not divide by P, the shares differ by one byte, and their sum is still exact.
    """
    if not num_bytes:
        return Traffic()
    num_messages = 2 * (num_ranks - 1)
    total = num_messages * num_bytes
    share = (rank + 1) * total // num_ranks - rank * total // num_ranks
    return Traffic(num_messages, share, num_messages, share)


def _to_others(rank: int, sizes: Sequence[int]) -> tuple[int, int]:
    messages = sum(1 for size in sizes if size) - (1 if sizes[rank] else 0)
    return messages, sum(sizes) - sizes[rank]

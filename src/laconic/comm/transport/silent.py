"""SilentTransport: a rank among others that say nothing. For rehearsals, which count what would be sent."""

from collections.abc import Sequence

import torch
from torch import Tensor

from laconic.comm.pending import Pending
from laconic.comm.transport.base import Reduction, Transport


class SilentTransport(Transport):
    """What should come from other ranks is 0."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        super().__init__(rank, num_ranks, torch.device("cpu"))

    def start_all_to_all(
        self, out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]
    ) -> Pending[None]:
        out.zero_()
        return Pending.done(None)

    def start_all_reduce(self, tensor: Tensor, op: Reduction) -> Pending[None]:
        return Pending.done(None)

    def start_all_gather(self, out: Tensor, data: Tensor) -> Pending[None]:
        out.copy_(data.expand_as(out))
        return Pending.done(None)

    def start_reduce_scatter(self, out: Tensor, data: Tensor, sizes: Sequence[int]) -> Pending[None]:
        out.copy_(torch.split(data, list(sizes))[self.rank])
        return Pending.done(None)

    def start_broadcast(self, tensor: Tensor, root: int) -> Pending[None]:
        return Pending.done(None)

    def barrier(self) -> None:
        pass

    def announce_failure(self, error: BaseException) -> None:
        pass

    def close(self) -> None:
        pass

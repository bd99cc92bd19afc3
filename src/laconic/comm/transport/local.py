"""LocalTransport: one rank. Every operation is a copy or nothing."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from laconic.comm.pending import Pending
from laconic.comm.transport.base import (
    Reduction,
    Transport,
    check_all_gather,
    check_all_to_all,
    check_reduce_scatter,
)


@final
class LocalTransport(Transport):
    """One rank that talks to nobody."""

    def __init__(self) -> None:
        super().__init__(0, 1, torch.device("cpu"))

    def start_all_to_all(
        self, out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]
    ) -> Pending[None]:
        check_all_to_all(self, out, out_sizes, data, sizes)
        out.copy_(data)
        return Pending.done(None)

    def start_all_reduce(self, tensor: Tensor, op: Reduction) -> Pending[None]:
        return Pending.done(None)

    def start_all_gather(self, out: Tensor, data: Tensor) -> Pending[None]:
        check_all_gather(self, out, data)
        out[0].copy_(data)
        return Pending.done(None)

    def start_reduce_scatter(self, out: Tensor, data: Tensor, sizes: Sequence[int]) -> Pending[None]:
        check_reduce_scatter(self, out, data, sizes)
        out.copy_(data)
        return Pending.done(None)

    def start_broadcast(self, tensor: Tensor, root: int) -> Pending[None]:
        assert root == 0
        return Pending.done(None)

    def barrier(self) -> None:
        pass

    def announce_failure(self, error: BaseException) -> None:
        pass

    def close(self) -> None:
        pass

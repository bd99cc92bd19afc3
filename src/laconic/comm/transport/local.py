"""LocalTransport: one rank. Every operation is a copy or nothing."""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from laconic.comm.pending import Pending
from laconic.comm.transport.base import check_all_gather, check_all_to_all, check_reduce_scatter
from laconic.comm.transport.silent import SilentTransport


@final
class LocalTransport(SilentTransport):
    """One rank that talks to nobody."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def start_all_to_all(
        self, out: Tensor, out_sizes: Sequence[int], data: Tensor, sizes: Sequence[int]
    ) -> Pending[None]:
        check_all_to_all(self, out, out_sizes, data, sizes)
        out.copy_(data)
        return Pending.done(None)

    def start_all_gather(self, out: Tensor, data: Tensor) -> Pending[None]:
        check_all_gather(self, out, data)
        return super().start_all_gather(out, data)

    def start_reduce_scatter(self, out: Tensor, data: Tensor, sizes: Sequence[int]) -> Pending[None]:
        check_reduce_scatter(self, out, data, sizes)
        return super().start_reduce_scatter(out, data, sizes)

"""stale: the message of the step before is used, so nobody waits (the idea of PipeGCN, Wan et al., ICLR 2022)."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from laconic.comm.codecs._inner import parse_inner
from laconic.comm.codecs.base import Codec, Memory, MessageKey


@final
@dataclass(frozen=True, slots=True)
class Stale(Codec):
    """Rows are sent in one step and waited for in the next, which uses them; the first are used at once.

    They travel under all that a step computes, its backward pass and the evaluation beside. Gradients are as old: they
    come back the same way, one step late (straight through). The codec is the one inside; that its rows are late is up
    to the exchange. Sizes that `codec` cannot know beforehand are still waited for.
    Traffic: that of `codec`, in the step that sends. Memory: the rows under way, beside what `codec` keeps.

    Args:
        codec: how rows are written.
    """

    codec: str = "identity"
    has_memory: ClassVar[bool] = True
    is_known_to_sender: ClassVar[bool] = False
    is_late: ClassVar[bool] = True

    def __post_init__(self) -> None:
        parse_inner(self.codec, family="stale", may_remember=True)

    @property
    def inner(self) -> Codec:
        return parse_inner(self.codec, family="stale", may_remember=True)

    @property
    def is_fixed_size(self) -> bool:  # type: ignore[override]
        return self.inner.is_fixed_size

    def first_rate(self, remote_share: float, degree: float) -> float:
        return self.inner.first_rate(remote_share, degree)

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return self.inner.wire_bytes(num_rows, width, rate, itemsize)

    def note_exact(self, rows: Tensor, memory: Memory) -> None:
        self.inner.note_exact(rows, memory)

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        return self.inner.encode(rows, key, rate, memory)

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        return self.inner.decode(packet, key, rate, width=width, dtype=dtype, memory=memory)

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
    """What a message brings is used when the next one comes; the first is used at once.

    Gradients are as old as rows: they come back the same way, one step late (straight through). Traffic: that of
    `codec`. Memory: the rows of the last message, at the receiver, beside what `codec` keeps.

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

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return self.inner.wire_bytes(num_rows, width, rate, itemsize)

    def note_exact(self, rows: Tensor, memory: Memory) -> None:
        memory.tensors["value"] = rows.detach().clone()
        self.inner.note_exact(rows, memory.of_inner)

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        assert memory is not None
        return self.inner.encode(rows, key, rate, memory.of_inner)

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        assert memory is not None
        came = self.inner.decode(packet, key, rate, width=width, dtype=dtype, memory=memory.of_inner)
        before = memory.tensors.get("value", came)
        memory.tensors["value"] = came
        return before

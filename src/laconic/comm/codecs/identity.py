"""identity: rows as they are."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from laconic.comm.codecs.base import Codec, Memory, MessageKey, as_bytes, from_bytes


@final
@dataclass(frozen=True, slots=True)
class Identity(Codec):
    """Sends every number as it is, whatever the rate. Traffic: 4 d bytes per row of float32."""

    backward: ClassVar[Literal["adjoint", "straight_through"]] = "adjoint"

    @property
    def is_unbiased(self) -> bool:
        return True

    def contracts(self, rate: float) -> bool:
        return True

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return num_rows * width * itemsize

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        return as_bytes(rows)

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        return from_bytes(packet, dtype, len(key.node_ids), width)

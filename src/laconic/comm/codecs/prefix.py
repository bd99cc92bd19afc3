"""prefix: the first columns, always the same ones (VARCO as its authors' scripts run it)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from laconic.comm.codecs.base import Codec, Memory, MessageKey, as_bytes, from_bytes, kept_columns


@final
@dataclass(frozen=True, slots=True)
class Prefix(Codec):
    """Sends the first m = d / rate columns; the others arrive as 0. Traffic: 4 m bytes per row."""

    backward: ClassVar[Literal["adjoint", "straight_through"]] = "adjoint"

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return num_rows * kept_columns(width, rate) * itemsize

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        return as_bytes(rows[:, : kept_columns(rows.shape[1], rate)])

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        num_kept = kept_columns(width, rate)
        rows = torch.zeros(len(key.node_ids), width, dtype=dtype)
        rows[:, :num_kept] = from_bytes(packet, dtype, len(key.node_ids), num_kept)
        return rows

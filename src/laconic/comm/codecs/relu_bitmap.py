"""relu_bitmap: no number is lost, and zeros cost a bit."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.codecs.base import Codec, Memory, MessageKey, as_bytes, from_bytes


@final
@dataclass(frozen=True, slots=True)
class ReluBitmap(Codec):
    """Sends one bit per number, and the numbers that are not 0: about half of them after a ReLU. Exact.

    A -0 arrives as 0. Traffic: ceil(d / 8) bytes per row and 4 per number that is not 0, so the most is more than the
    rows themselves; sizes are told first. The rate does not matter.
    """

    backward: ClassVar[Literal["adjoint", "straight_through"]] = "adjoint"
    is_fixed_size: ClassVar[bool] = False

    @property
    def is_unbiased(self) -> bool:
        return True

    def contracts(self, rate: float) -> bool:
        return True

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return num_rows * ((width + 7) // 8 + width * itemsize)

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        is_there = rows != 0
        bits = torch.from_numpy(np.packbits(is_there.numpy(), axis=1)).flatten()
        return torch.cat([bits, as_bytes(rows[is_there])])

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        num_rows = len(key.node_ids)
        end = num_rows * ((width + 7) // 8)
        bits = np.unpackbits(packet[:end].view(num_rows, -1).numpy(), axis=1, count=width)
        rows = torch.zeros(num_rows, width, dtype=dtype)
        rows[torch.from_numpy(bits.view(bool))] = from_bytes(packet[end:], dtype, -1)
        return rows

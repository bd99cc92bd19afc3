"""cast: numbers of half the size."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from laconic.comm.codecs.base import Codec, Memory, MessageKey, as_bytes, from_bytes
from laconic.errors import ConfigError
from laconic.specs import unknown_name

_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@final
@dataclass(frozen=True, slots=True)
class Cast(Codec):
    """Rounds every number to 16 bits, whatever the rate. Traffic: 2 d bytes per row.

    Args:
        to: "bfloat16" keeps the range of float32 and 8 binary digits; "float16" keeps 11, and numbers beyond 65504
            become that.
    """

    to: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.to not in _DTYPES:
            raise ConfigError(unknown_name(self.to, _DTYPES, family="codec cast: to"))

    def contracts(self, rate: float) -> bool:
        return True

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return num_rows * width * 2

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        largest = torch.finfo(_DTYPES[self.to]).max
        return as_bytes(rows.clamp(-largest, largest).to(_DTYPES[self.to]))

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        return from_bytes(packet, _DTYPES[self.to], len(key.node_ids), width).to(dtype)

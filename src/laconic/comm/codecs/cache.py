"""cache: the receiver keeps what it has, and each message renews some columns of it, in turn."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from laconic.comm.codecs._inner import parse_inner
from laconic.comm.codecs.base import Codec, Memory, MessageKey, kept_columns
from laconic.errors import ConfigError


@final
@dataclass(frozen=True, slots=True)
class Cache(Codec):
    """Each message renews m columns, the next m the next time: none is older than ceil(d / m) messages.

    What has never come is 0. Gradients come back the same way, into caches of their own at the owners (straight
    through), so they are as old. The sender keeps no copy, only whose turn it is.
    Traffic: that of `codec` for m columns. Memory: the rows of the last message, at the receiver.

    Args:
        codec: how the columns are written, at what is left of the rate; one without a memory of its own.
        age: the most messages until a column is renewed, so m = ceil(d / age); 0 follows the rate: m = d / rate.
    """

    codec: str = "identity"
    age: int = 0
    has_memory: ClassVar[bool] = True
    is_known_to_sender: ClassVar[bool] = False

    def __post_init__(self) -> None:
        parse_inner(self.codec, family="cache")
        if self.age < 0:
            raise ConfigError(f"codec cache: age should be 1 or more, or 0 to follow the rate; got {self.age}.")

    @property
    def inner(self) -> Codec:
        return parse_inner(self.codec, family="cache")

    @property
    def is_fixed_size(self) -> bool:  # type: ignore[override]
        return self.inner.is_fixed_size

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        num_columns = self._num_columns(width, rate)
        return self.inner.wire_bytes(num_rows, num_columns, self._inner_rate(rate), itemsize)

    def note_exact(self, rows: Tensor, memory: Memory) -> None:
        memory.tensors["value"] = rows.detach().clone()

    def _num_columns(self, width: int, rate: float) -> int:
        return -(-width // self.age) if self.age else kept_columns(width, rate)

    def _inner_rate(self, rate: float) -> float:
        return max(1.0, rate / self.age) if self.age else 1.0

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        assert memory is not None
        columns = self._turn(memory, rows.shape[1], rate)
        return self.inner.encode(rows[:, columns], key, self._inner_rate(rate))

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        assert memory is not None
        columns = self._turn(memory, width, rate)
        known = memory.tensors.get("value")
        # A new tensor each time: the one before may still be in use.
        value = torch.zeros(len(key.node_ids), width, dtype=dtype) if known is None else known.clone()
        value[:, columns] = self.inner.decode(packet, key, self._inner_rate(rate), width=len(columns), dtype=dtype)
        memory.tensors["value"] = value
        return value

    def _turn(self, memory: Memory, width: int, rate: float) -> Tensor:
        """Returns the columns whose turn it is, and passes the turn on."""
        begin = int(memory.tensors.get("turn", torch.zeros(1, dtype=torch.int64)))
        columns = (begin + torch.arange(self._num_columns(width, rate))) % width
        memory.tensors["turn"] = torch.tensor([(begin + len(columns)) % width])
        return columns

"""error_feedback: only changes are sent, so what a codec lost is sent again (EF21, Richtarik et al., NeurIPS 2021)."""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from laconic.comm.codecs._inner import parse_inner
from laconic.comm.codecs.base import Codec, Memory, MessageKey
from laconic.errors import ConfigError


@final
@dataclass(frozen=True, slots=True)
class ErrorFeedback(Codec):
    """Both ends keep what the receiver has; the sender sends the difference to it through `codec`.

    Rows that stand still arrive exactly in the end, and where they move slowly, as late in training, little is lost.
    Gradients come back the same way, as rows of their own with memories of their own (straight through).
    Where they move fast, what arrives lags behind: docs/compression.md has where that costs accuracy.
    Traffic: that of `codec`. Memory: the rows of the last message, at both ends.

    Args:
        codec: one without a memory of its own that makes the difference smaller: not scaled-up ones, nor 1 bit.
    """

    codec: str = "quantize(bits=2, stochastic=False)"
    has_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        inner = self.inner
        # A codec that follows the rate may contract at some only; those are refused when they come.
        if not any(inner.contracts(rate) for rate in (2.0, 1e9)):
            raise ConfigError(self._refusal)

    @property
    def inner(self) -> Codec:
        return parse_inner(self.codec, family="error_feedback")

    @property
    def _refusal(self) -> str:
        return (
            f"codec error_feedback: {self.codec} may lose more than it is given, or leaves out the same part always: "
            f"errors would grow, or stay. Use quantize with 2 bits or more, topk, low_rank, cast, or subset unscaled."
        )

    def first_rate(self, remote_share: float, degree: float) -> float:
        rate = self.inner.first_rate(remote_share, degree)
        while rate > 1 and not self.inner.contracts(rate):
            rate /= 2
        return max(rate, 1.0)

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return self.inner.wire_bytes(num_rows, width, rate, itemsize)

    def arrived(self, packet: Tensor, key: MessageKey, rate: float, rows: Tensor, memory: Memory) -> Tensor:
        return memory.tensors["value"]

    def note_exact(self, rows: Tensor, memory: Memory) -> None:
        memory.tensors["value"] = rows.detach().clone()

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        assert memory is not None
        inner = self.inner
        if not inner.contracts(rate):
            raise ConfigError(f"{self._refusal} Here: rate {rate:g}.")
        known = memory.tensors.get("value")
        change = rows if known is None else rows - known
        packet = inner.encode(change, key, rate)
        # The sender follows what the receiver makes of it.
        self.decode(packet, key, rate, width=rows.shape[1], dtype=rows.dtype, memory=memory)
        return packet

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        assert memory is not None
        change = self.inner.decode(packet, key, rate, width=width, dtype=dtype)
        known = memory.tensors.get("value")
        value = change if known is None else known + change
        memory.tensors["value"] = value
        return value

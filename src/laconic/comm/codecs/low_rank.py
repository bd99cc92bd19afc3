"""low_rank: rows as mixtures of a few directions, which travel with them (the `pca` of VARCO's authors)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from laconic.comm.codecs.base import Codec, Memory, MessageKey, as_bytes, from_bytes


@final
@dataclass(frozen=True, slots=True)
class LowRank(Codec):
    """Sends the m directions that hold most of the message's energy, and each row's part in them.

    The error is the energy in all other directions (the tail of the squared singular values), the least that m
    directions can have. Gradients come back through the same directions, which both ends have by then; that the
    directions themselves depend on the rows is left out of the gradient.
    Traffic: 4 m (n + d) bytes for n rows, backward 4 m n; m is the most that the rate allows, one at least.
    """

    backward: ClassVar[Literal["adjoint", "straight_through"]] = "adjoint"

    def contracts(self, rate: float) -> bool:
        return True

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return (num_rows + width) * _rank(num_rows, width, rate) * itemsize if num_rows else 0

    def adjoint_wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return num_rows * _rank(num_rows, width, rate) * itemsize if num_rows else 0

    def adjoint(self, packet: Tensor, num_rows: int, width: int, rate: float, dtype: torch.dtype) -> Codec:
        rank = _rank(num_rows, width, rate)
        return _InBasis(from_bytes(packet[: width * rank * dtype.itemsize], dtype, width, rank))

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        # Squares lose half the digits: in float64 as many are left as float32 has.
        wide = rows.double()
        _, directions = torch.linalg.eigh(wide.T @ wide)
        rank = _rank(len(rows), rows.shape[1], rate)
        # From the smallest eigenvalue to the largest.
        basis = directions[:, -rank:].to(rows.dtype).contiguous()
        return torch.cat([as_bytes(basis), as_bytes(rows @ basis)])

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        num_rows = len(key.node_ids)
        rank = _rank(num_rows, width, rate)
        end = width * rank * dtype.itemsize
        basis = from_bytes(packet[:end], dtype, width, rank)
        return from_bytes(packet[end:], dtype, num_rows, rank) @ basis.T


@final
@dataclass(frozen=True)
class _InBasis(Codec):
    """Rows' parts in directions, (d, m), that both ends have."""

    basis: Tensor = field(repr=False)

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return num_rows * self.basis.shape[1] * itemsize

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        return as_bytes(rows @ self.basis)

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        return from_bytes(packet, dtype, len(key.node_ids), self.basis.shape[1]) @ self.basis.T


def _rank(num_rows: int, width: int, rate: float) -> int:
    if not num_rows or not width:
        return 0
    return min(width, max(1, int(num_rows * width / (rate * (num_rows + width)))))

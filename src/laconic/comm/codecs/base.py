"""What a codec is: rows for one rank in, bytes out, and rows again at the other end. This docstring is the contract.

    packet = codec.encode(rows, key, rate)                                    # uint8, (bytes,)
    rows = codec.decode(packet, key, rate, width=64, dtype=torch.float32)

`rate` is one scale for all: the bytes of the rows in float32 over the bytes sent. A codec that cannot meet a rate
exactly keeps to the nearest it can; one of fixed strength (cast) has its own. At rate 1 the exchange sends rows as they
are and asks no codec. All chance is a function of the key, so both ends draw alike, in any order, on any number of
threads.

Backward, gradients of the received rows travel the other way. With a key fixed, codecs that are linear maps send them
through the adjoint map, with the same key: the gradient is the exact one of the network with this map in it
(`backward = "adjoint"`). Others send them as rows of their own kind, under a key of their own ("straight_through").

Members are frozen dataclasses; what has to be remembered from message to message is in a `Memory` that the caller
keeps, one at each end. A new one is a file here and a line in the table of `codecs/__init__.py`; the contract tests
pick it up.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.errors import DivergedError
from laconic.kernels.keyed import fold_key

# Shapes: n rows of a message, d columns

Direction = Literal["forward", "backward"]

# A rate that no run begins above unless told to; the paper's.
PAPER_RATE = 128.0
# So large may the error of an aggregated row be at the beginning, relative to the row.
FIRST_ERROR = 0.5


@final
@dataclass(frozen=True, eq=False)
class MessageKey:
    """Which message of a run this is: what its randomness is a function of, and what errors name.

    Args:
        seed: of the run.
        epoch, step, layer, call: where in the run; a layer that asks several times in a step counts its calls.
        direction: "backward" for gradients.
        sender, receiver: ranks.
        node_ids: of each row, the same wherever the row is: int64 (n,).
        adjoint_of: the message whose adjoint gradients go through: they draw what it drew.
    """

    seed: int
    epoch: int
    step: int
    layer: int
    call: int
    direction: Direction
    sender: int
    receiver: int
    node_ids: NDArray[np.int64]
    adjoint_of: "MessageKey | None" = None

    @property
    def value(self) -> np.uint64:
        """The key without the rows."""
        if self.adjoint_of is not None:
            return self.adjoint_of.value
        is_backward = int(self.direction == "backward")
        where = (self.epoch, self.step, self.layer, self.call, is_backward, self.sender, self.receiver)
        return fold_key(self.seed, *where)

    def describe(self) -> str:
        """Returns the place for an error, such as "layer 1, forward, from rank 0 to rank 2, in epoch 7"."""
        return (
            f"layer {self.layer}, {self.direction}, from rank {self.sender} to rank {self.receiver}, "
            f"in epoch {self.epoch}"
        )


@final
@dataclass
class Memory:
    """What one end of a line remembers from message to message, by name."""

    tensors: dict[str, Tensor] = field(default_factory=dict)


class Codec(ABC):
    """How rows are written for the way. The fields of a member are its whole configuration."""

    backward: ClassVar[Literal["adjoint", "straight_through"]] = "straight_through"
    """How gradients of the decoded rows come back."""
    is_fixed_size: ClassVar[bool] = True
    """Whether `wire_bytes` is what a packet has; otherwise it is the most, and sizes are told first."""
    has_memory: ClassVar[bool] = False
    """Whether it remembers earlier messages."""
    is_known_to_sender: ClassVar[bool] = True
    """Whether the sender can tell what the receiver makes of a packet (`arrived`)."""
    is_late: ClassVar[bool] = False
    """Whether the exchange uses, in each step, the rows of the step before."""

    @property
    def is_unbiased(self) -> bool:
        """Whether the mean of the decoded rows over keys is the rows."""
        return False

    def contracts(self, rate: float) -> bool:
        """Whether sending again and again what was lost makes it vanish, as error_feedback does."""
        return False

    @final
    def encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None = None) -> Tensor:
        """Returns rows (n, d) as bytes, uint8. Raises DivergedError, naming layer and node, if one is not finite."""
        assert rows.dim() == 2
        assert len(rows) == len(key.node_ids)
        assert rate >= 1
        check_finite(rows, key)
        if not rows.numel():
            return torch.empty(0, dtype=torch.uint8)
        return self._encode(rows.detach().contiguous(), key, rate, memory)

    @final
    def decode(
        self,
        packet: Tensor,
        key: MessageKey,
        rate: float,
        *,
        width: int,
        dtype: torch.dtype,
        memory: Memory | None = None,
    ) -> Tensor:
        """Returns what `encode` was given, (n, width), or what is left of it."""
        if not len(key.node_ids) or not width:
            return torch.empty(len(key.node_ids), width, dtype=dtype)
        return self._decode(packet, key, rate, width, dtype, memory)

    @abstractmethod
    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        """Returns the bytes of a packet of `num_rows` rows, or the most that it can have.

        Args:
            itemsize: bytes of one number of the rows; 8 for float64.
        """

    @abstractmethod
    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        """Does `encode` for contiguous rows of which there is one at least."""

    @abstractmethod
    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        """Does `decode` for a packet of one row at least."""

    def adjoint(self, packet: Tensor, num_rows: int, width: int, rate: float, dtype: torch.dtype) -> "Codec":
        """Returns the codec whose decode(encode(.)) is the adjoint of the map that `packet` went through.

        Both ends have the packet. A map that is symmetric is its own.
        """
        return self

    def adjoint_wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        """Returns `wire_bytes` of the adjoint, known before there is a packet."""
        return self.wire_bytes(num_rows, width, rate, itemsize)

    def arrived(self, packet: Tensor, key: MessageKey, rate: float, rows: Tensor, memory: Memory) -> Tensor:
        """Returns, at the sender, what the receiver makes of the packet that `rows` have just become."""
        return self.decode(packet, key, rate, width=rows.shape[1], dtype=rows.dtype)

    def first_rate(self, remote_share: float, degree: float) -> float:
        """Returns the rate to begin with where a schedule is not told one.

        The error of an aggregated row is held at FIRST_ERROR. With a share s of its neighbours elsewhere, leaving out
        all columns but those of rate c loses s (1 - 1 / c) of it. Where little is remote, the paper's rate.

        Args:
            remote_share: share of all edges whose source another rank owns.
            degree: edges per node.
        """
        if remote_share <= FIRST_ERROR:
            return PAPER_RATE
        return min(PAPER_RATE, 1 / (1 - FIRST_ERROR / remote_share))

    def note_exact(self, rows: Tensor, memory: Memory) -> None:  # noqa: B027
        """Told at both ends when rows went as they are, at rate 1: a better memory than any."""


def check_finite(rows: Tensor, key: MessageKey) -> None:
    """Raises DivergedError, naming layer and node, unless every number is finite."""
    # One pass that writes nothing; large numbers may overflow in it, and are then looked at one by one.
    if math.isfinite(rows.sum().item()):
        return
    bad = (~torch.isfinite(rows)).nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise DivergedError(
            f"The row of node {key.node_ids[row]} has {rows[row, column].item()} in column {column}: {key.describe()}. "
            f"Lower the learning rate, or the rate of compression."
        )


def first_rate_of_unbiased(remote_share: float, num_averaged: float) -> float:
    """Returns the rate to begin with for rows whose mean is right: errors of so many rows average out.

    At rate c each row is off by (c - 1) times its square; c - 1 is held at FIRST_ERROR num_averaged / remote_share.
    """
    return min(PAPER_RATE, 1 + FIRST_ERROR * max(num_averaged, 1.0) / max(remote_share, 1e-9))


def kept_columns(width: int, rate: float) -> int:
    """Returns how many of `width` columns a rate leaves: one at least, so a rate above the width acts as the width."""
    return min(width, max(1, round(width / rate)))


def as_bytes(tensor: Tensor) -> Tensor:
    """Returns the bytes of a tensor, uint8, as a view where it is contiguous."""
    return tensor.contiguous().flatten().view(torch.uint8)


def from_bytes(packet: Tensor, dtype: torch.dtype, *shape: int) -> Tensor:
    """Returns the tensor whose bytes these are."""
    if packet.storage_offset() % dtype.itemsize or packet.data_ptr() % dtype.itemsize:
        packet = packet.clone()
    return packet.view(dtype).view(*shape)

"""subset: some columns, drawn from a key that both ends have (VARCO, arXiv 2406.17611, as the paper describes it)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.codecs.base import (
    Codec,
    Memory,
    MessageKey,
    as_bytes,
    first_rate_of_unbiased,
    from_bytes,
    kept_columns,
)
from laconic.errors import ConfigError
from laconic.kernels.compile import use_threads
from laconic.kernels.subsets import draw_columns
from laconic.specs import unknown_name


@final
@dataclass(frozen=True, slots=True)
class Subset(Codec):
    """Sends m = d / rate columns; the others arrive as 0. No index travels. Traffic: 4 m bytes per row.

    The relative error of a row is 1 - m / d as it is, and d / m - 1 scaled, where the mean is right.

    Args:
        by: "column" draws one set for all rows of a message, as the paper; "row" draws one for each row, so that the
            errors of a node's neighbours are independent and average out.
        scale: multiply by d / m: unbiased, with more error.
    """

    by: str = "column"
    scale: bool = False
    backward: ClassVar[Literal["adjoint", "straight_through"]] = "adjoint"

    def __post_init__(self) -> None:
        if self.by not in ("column", "row"):
            raise ConfigError(unknown_name(self.by, ("column", "row"), family="codec subset: by"))

    @property
    def is_unbiased(self) -> bool:
        return self.scale

    def contracts(self, rate: float) -> bool:
        return not self.scale

    def first_rate(self, remote_share: float, degree: float) -> float:
        if not self.scale:
            return Codec.first_rate(self, remote_share, degree)
        # Columns drawn for all rows at once are off alike in all neighbours.
        return first_rate_of_unbiased(remote_share, degree if self.by == "row" else 1.0)

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return num_rows * kept_columns(width, rate) * itemsize

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        columns = self._columns(key, rows.shape[1], rate)
        return as_bytes(rows.gather(1, columns.expand(len(rows), -1)))

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        num_rows = len(key.node_ids)
        columns = self._columns(key, width, rate)
        kept = from_bytes(packet, dtype, num_rows, columns.shape[1])
        if self.scale:
            kept = kept * (width / columns.shape[1])
        return torch.zeros(num_rows, width, dtype=dtype).scatter_(1, columns.expand(num_rows, -1), kept)

    def _columns(self, key: MessageKey, width: int, rate: float) -> Tensor:
        """Returns the columns of each row, (n, m), or of all rows, (1, m)."""
        ids = key.node_ids if self.by == "row" else np.zeros(1, np.int64)
        columns = np.empty((len(ids), kept_columns(width, rate)), np.int64)
        use_threads(torch.get_num_threads(), len(ids) * width)
        draw_columns(ids, key.value, width, columns)
        return torch.from_numpy(columns)

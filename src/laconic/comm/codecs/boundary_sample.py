"""boundary_sample: some of the rows, scaled up (the idea of BNS-GCN, Wan et al., MLSys 2022, arXiv 2203.10983)."""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from laconic.comm.codecs.base import Codec, Memory, MessageKey, as_bytes, first_rate_of_unbiased, from_bytes
from laconic.kernels.compile import use_threads
from laconic.kernels.subsets import hash_nodes


@final
@dataclass(frozen=True, slots=True)
class BoundarySample(Codec):
    """Sends k = n / rate of the n rows, times n / k; the others arrive as 0. Which ones, the key and the node say.

    Unbiased; the relative error of the message is n / k - 1. Traffic: 4 d bytes for each of the k rows.
    """

    backward: ClassVar[Literal["adjoint", "straight_through"]] = "adjoint"

    @property
    def is_unbiased(self) -> bool:
        return True

    def first_rate(self, remote_share: float, degree: float) -> float:
        return first_rate_of_unbiased(remote_share, degree)

    def wire_bytes(self, num_rows: int, width: int, rate: float, itemsize: int = 4) -> int:
        return _num_kept(num_rows, rate) * width * itemsize if num_rows else 0

    def _encode(self, rows: Tensor, key: MessageKey, rate: float, memory: Memory | None) -> Tensor:
        return as_bytes(rows[_chosen(key, rate)])

    def _decode(
        self, packet: Tensor, key: MessageKey, rate: float, width: int, dtype: torch.dtype, memory: Memory | None
    ) -> Tensor:
        chosen = _chosen(key, rate)
        rows = torch.zeros(len(key.node_ids), width, dtype=dtype)
        rows[chosen] = from_bytes(packet, dtype, len(chosen), width) * (len(rows) / len(chosen))
        return rows


def _num_kept(num_rows: int, rate: float) -> int:
    return min(num_rows, max(1, round(num_rows / rate)))


def _chosen(key: MessageKey, rate: float) -> Tensor:
    hashes = np.empty(len(key.node_ids), np.uint64)
    use_threads(torch.get_num_threads(), len(hashes))
    hash_nodes(key.node_ids, key.value, hashes)
    order = np.argsort(hashes, kind="stable")
    return torch.from_numpy(np.sort(order[: _num_kept(len(hashes), rate)]))

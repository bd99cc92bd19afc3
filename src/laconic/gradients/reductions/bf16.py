"""bf16: gradients travel as bfloat16: the range of float32, 8 of its 24 bits of precision.

The sum is ours, not the backend's: each rank gets its part of all gradients, adds it up in float32
and in rank order, rounds once, and hands it to the others. So all ranks have the same bits, and no
sum is rounded on the way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.comm.pending import Pending
from laconic.gradients.reductions._buckets import in_buckets
from laconic.gradients.reductions.base import GradientReduction, Reducer


@final
@dataclass(frozen=True, slots=True)
class Bf16(GradientReduction):
    """Sends every word in 2 bytes.

    The mean is off by at most 2**-8 of itself plus 2**-8 of the mean magnitude.

    Traffic: for each bucket of N words, a reduce_scatter and an all_gather of 2 ceil(N / P) bytes
    for each other rank.
    """

    def reducer(self, communicator: Communicator) -> Reducer:
        return _Bf16Reducer(communicator)


@final
class _Bf16Reducer(Reducer):
    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def means(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self._communicator.num_ranks == 1:
            return dict(gradients)
        return dict(zip(gradients, in_buckets(list(gradients.values()), self._start), strict=True))

    def _start(self, flat: Tensor) -> Pending[Tensor]:
        communicator, num_words = self._communicator, flat.numel()
        part = -(-num_words // communicator.num_ranks)
        # Divided before it is rounded: afterwards, a mean over three ranks would be rounded twice.
        short = (flat / communicator.num_ranks).to(torch.bfloat16)
        parts = F.pad(short, (0, part * communicator.num_ranks - num_words))
        mean = communicator.reduce_scatter(parts, [part] * communicator.num_ranks)
        return Pending.done(communicator.all_gather(mean).flatten()[:num_words].to(flat.dtype))

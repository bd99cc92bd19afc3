"""RememberedInputs: aggregations of the graph's own features, kept from step to step since they never change."""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from laconic.errors import ConfigError

# Aggregated input features are kept up to this size: they cost memory once and save a product in every epoch. Their
# powers (SGConv) are kept as long as all of them together are not larger.
REMEMBERED_BYTES_LIMIT = 1 << 30


@final
@dataclass(frozen=True, eq=False)
class _Kept:
    """An aggregation that is kept, and how often both tensors had been changed in place by then."""

    x: Tensor
    out: Tensor
    x_version: int
    out_version: int

    @staticmethod
    def of(x: Tensor, out: Tensor) -> "_Kept":
        return _Kept(x, out, x._version, out._version)

    @property
    def is_valid(self) -> bool:
        return self.x._version == self.x_version and self.out._version == self.out_version


@final
class RememberedInputs:
    """What was made of constant rows.

    Args:
        x: the constant rows to begin with; None remembers nothing.
        num_rows: where ranks share the rows, the number by which sizes are judged, the same on every rank: what one
            rank keeps and another does not would leave one of them waiting. By default that of x.
    """

    def __init__(self, x: Tensor | None, *, num_rows: int | None = None) -> None:
        self._kept: dict[tuple[Hashable, int], _Kept] = {}
        self._constants: dict[int, Tensor] = {} if x is None else {id(x): x}
        self._num_rows = num_rows

    def covers(self, x: Tensor) -> bool:
        """Whether what is made of x is kept."""
        return (
            self._constants.get(id(x)) is x
            and not x.requires_grad
            and not x.is_inference()
            and self._num_bytes(x) <= REMEMBERED_BYTES_LIMIT
            and x.is_floating_point()
        )

    def recall(self, name: Hashable, x: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns make(x), made now or in an earlier step; `name` says what it is."""
        kept = self._kept.get((name, id(x)))
        if kept is None or not kept.is_valid:
            if kept is not None and kept.x._version != kept.x_version and self._num_rows is not None:
                raise ConfigError(
                    "The features were changed in place after the first step. What was made of them is kept, and to "
                    "make it anew all ranks would have to know. Change them before the model is attached, or call the "
                    "model with a tensor of their values: model(shard.x * factor, shard.edge_index)."
                )
            if kept is not None:
                self._forget(kept.out)
            # Out of inference mode: a tensor made in it could not be trained on later.
            with torch.inference_mode(False), torch.no_grad():
                kept = _Kept.of(x, make(x))
            self._kept[name, id(x)] = kept
            if sum(map(self._num_bytes, self._constants.values())) <= REMEMBERED_BYTES_LIMIT:
                # What was made of a constant is one too, so that powers (SGConv) are kept as well.
                self._constants[id(kept.out)] = kept.out
        return kept.out

    @property
    def are_intact(self) -> bool:
        """Whether nothing that is kept was changed in place."""
        return all(kept.is_valid for kept in self._kept.values())

    def _num_bytes(self, x: Tensor) -> int:
        num_rows = len(x) if self._num_rows is None else self._num_rows
        return num_rows * math.prod(x.shape[1:]) * x.element_size()

    def _forget(self, out: Tensor) -> None:
        """Drops what was kept of `out`, an aggregation that holds no longer."""
        self._constants.pop(id(out), None)
        for place, kept in list(self._kept.items()):
            if kept.x is out:
                del self._kept[place]
                self._forget(kept.out)

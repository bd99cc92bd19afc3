"""Workload: the products of an epoch of a model, as a plan weighs grids by them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from laconic.comm.communicator import Communicator
from laconic.comm.exchange import RowExchange
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.transport.local import LocalTransport
from laconic.errors import UnsupportedModelError
from laconic.sharded.check import check_convolutions
from laconic.sharded.miniature import few_rows
from laconic.sharded.placement import at_destinations
from laconic.sharded.trace import Traces


@final
@dataclass(frozen=True)
class Workload:
    """What is multiplied.

    Args:
        num_features: of a row, as it is stored.
        products: width of the rows of every product of an epoch (a training step and an evaluation), in order: on the
            narrower side of each layer, without those whose result is kept.
        is_of_model: whether a model was asked; otherwise the products are one, of the features.
        narrowest: of the rows that may be sliced.
        objection: says why a grid cannot run the model, or nothing.
    """

    num_features: int
    products: tuple[int, ...]
    is_of_model: bool
    narrowest: int
    objection: Callable[[Grid], str]

    @property
    def widest(self) -> int:
        """Width of the widest rows that are gathered, now and then or in every epoch."""
        return max(self.num_features, *self.products) if self.products else self.num_features

    @staticmethod
    def of_features(num_features: int, num_classes: int) -> "Workload":
        """Returns one product as wide as the features, where no model is known."""
        return Workload(num_features, (num_features,), False, min(num_features, num_classes), lambda grid: "")

    @staticmethod
    def of_model(
        model: nn.Module, num_features: int, dtype: torch.dtype, *, is_weighted: bool, largest_num_rows: int
    ) -> "Workload":
        """Returns the products of `model`, by its trace on one rank.

        Where it cannot run, that of the features: `check` will say why.

        Args:
            largest_num_rows: the most rows that a rank will own, by which is decided what is kept.
        """
        shard = few_rows(torch.empty(0, num_features, dtype=dtype), torch.empty(0) if is_weighted else None)
        num_rows = shard.num_rows
        placement = at_destinations(
            shard,
            RowExchange.of_nothing(Communicator(LocalTransport(), Ledger(0)), num_rows),
            largest_num_rows=largest_num_rows,
            largest_num_columns=num_rows,
            num_nodes=num_rows,
            num_train=num_rows,
        )
        try:
            trace = Traces(model).of(placement, is_coded=True)
        except Exception:
            return Workload.of_features(num_features, num_features)

        def objection(grid: Grid) -> str:
            try:
                check_convolutions(model, grid)
            except UnsupportedModelError:
                return "needs whole rows" if grid.pj > 1 else "needs all edges of a row"
            return ""

        products = trace.products
        # Constants are as wide as the features.
        constants = [] if all(trace.changes_in_training) else [num_features]
        narrowest = min([*products, *constants], default=num_features)
        return Workload(num_features, tuple(products), True, narrowest, objection)

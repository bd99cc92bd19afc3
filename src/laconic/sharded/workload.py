"""Workload: the products of an epoch of a model, as a plan weighs grids by them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from torch import nn

from laconic.comm.grid import Grid
from laconic.errors import UnsupportedModelError
from laconic.sharded.check import check_convolutions
from laconic.sharded.placement import Placement
from laconic.sharded.trace import Traces


@final
@dataclass(frozen=True)
class Workload:
    """What is multiplied.

    Args:
        num_features: of a row, as it is stored.
        products: width of the rows of every product of an epoch (a training step and an evaluation), in order: on the
            narrower side of each layer, without those whose result is kept.
        narrowest: of the rows that may be sliced.
        objection: says why a grid cannot run the model, or nothing.
    """

    num_features: int
    products: tuple[int, ...]
    narrowest: int
    objection: Callable[[Grid], str]

    @property
    def widest(self) -> int:
        """Width of the widest rows that are gathered, now and then or in every epoch."""
        return max(self.num_features, *self.products) if self.products else self.num_features

    @staticmethod
    def of_model(model: nn.Module, placement: Placement) -> "Workload":
        """Returns the products of `model`, by its trace on a placement of one axis.

        Where it cannot run, one product of the features: `check` will say why.
        """
        num_features = placement.shard.x.shape[1]
        try:
            trace = Traces(model).of(placement, is_coded=True)
        except Exception:
            return Workload(num_features, (num_features,), num_features, lambda grid: "")

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
        return Workload(num_features, tuple(products), narrowest, objection)

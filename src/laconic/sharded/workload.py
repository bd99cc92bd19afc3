"""Workload: the products of an epoch of a model, as a plan weighs grids by them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from laconic.attach import attach, detached_copy
from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.comm.ledger import Ledger
from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.comm.transport.local import LocalTransport
from laconic.errors import UnsupportedModelError
from laconic.graph import Graph, Shard
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.axis import BookedAxis, PlacedAxis
from laconic.sharded.check import check_convolutions
from laconic.sharded.normalize import BlockOperators
from laconic.sharded.placement import Placement
from laconic.sharded.swap import NoSwap

_NUM_NODES = 3


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
        """Returns the products of `model`, by running it on three nodes; it is copied and stays as it is.

        Where it cannot run, that of the features: `check` will say why.

        Args:
            largest_num_rows: the most rows that a rank will own, by which is decided what is kept.
        """
        stage = _stage(num_features, dtype, is_weighted=is_weighted)
        try:
            once, products = _noted_widths(model, replace(stage, largest_num_rows=largest_num_rows))
        except Exception:
            return Workload.of_features(num_features, num_features)

        def objection(grid: Grid) -> str:
            try:
                check_convolutions(model, grid)
            except UnsupportedModelError:
                return "needs whole rows" if grid.pj > 1 else "needs all edges of a row"
            return ""

        # What is looked up once (degrees, one wide) is not sliced.
        narrowest = min([width for width in (*once, *products) if width > 1], default=num_features)
        return Workload(num_features, tuple(products), True, narrowest, objection)


@final
class _NotingAxis(PlacedAxis):
    """Notes the widths of what it would bring, and brings nothing."""

    def __init__(self) -> None:
        self.widths: list[int] = []

    @property
    def num_others(self) -> int:
        return 0

    def start_expand(self, x: Tensor, widest: int) -> Pending[Tensor]:
        return self._note(x)

    def start_fold(self, partial: Tensor, widest: int) -> Pending[Tensor]:
        return self._note(partial)

    def add_folded(self, arrived: Tensor, into: Tensor) -> None:
        pass

    def booked(self, ledger: Ledger) -> "_NotingAxis":
        return self

    def _note(self, rows: Tensor) -> Pending[Tensor]:
        self.widths.append(rows.shape[1])
        return Pending.done(rows.new_empty(0, rows.shape[1]))


def _noted_widths(model: nn.Module, placement: Placement) -> tuple[list[int], list[int]]:
    """Returns the widths of what is exchanged in the first epoch alone, and in every one."""
    axis = placement.columns
    assert isinstance(axis, _NotingAxis)
    actor = detached_copy(model)
    found = []
    with torch.random.fork_rng(devices=[]):
        attach(actor, placement.shard, aggregator=ShardedAggregator(placement))
        for _ in range(2):
            axis.widths = []
            torch.autograd.backward(run_model(actor.train(), placement.shard).sum())
            with torch.no_grad():
                run_model(actor.eval(), placement.shard)
            found.append(axis.widths)
    first, second = found
    once = list(first)
    for width in second:
        once.remove(width)
    return once, second


def _stage(num_features: int, dtype: torch.dtype, *, is_weighted: bool) -> Placement:
    train, val, test = torch.eye(_NUM_NODES, dtype=torch.bool)
    edges = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    graph = Graph(
        x=torch.ones(_NUM_NODES, num_features, dtype=dtype) * torch.arange(1, _NUM_NODES + 1)[:, None].to(dtype),
        y=torch.zeros(_NUM_NODES, dtype=torch.int64),
        edge_index=edges,
        edge_weight=torch.ones(edges.shape[1]) if is_weighted else None,
        train_mask=train,
        val_mask=val,
        test_mask=test,
        num_classes=2,
        name="three nodes",
    )
    shard = Shard.whole(graph)
    communicator = Communicator(LocalTransport(), Ledger(0))
    adjacency = shard.adjacency
    weights = None if shard.edge_weight is None else shard.edge_weight.double().numpy()
    nothing = BookedAxis(Splits((0,), (0,), 0), communicator.ledger)
    noting = _NotingAxis()
    ids = torch.arange(_NUM_NODES)
    return Placement(
        shard=shard,
        communicator=communicator,
        grid=Grid(),
        operators=BlockOperators(adjacency, _NUM_NODES, weights, noting, nothing),
        sources=noting,
        row_ids=ids,
        column_ids=ids,
        swap=NoSwap(),
        largest_num_rows=_NUM_NODES,
        largest_num_columns=_NUM_NODES,
        num_nodes=_NUM_NODES,
        num_train=_NUM_NODES,
    )

"""A layer's linear part over three ranks: values, gradients and their gradients are those of dense matrices."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.comm import Communicator, Ledger, Transport, run_ranks
from laconic.comm.exchange import RowExchange
from laconic.graph import Adjacency
from laconic.graph.operators.linear import LinearOperator
from laconic.sharded.axis import AxisExchange
from laconic.sharded.operator import ShardedOperator
from laconic.sharded.position import Position
from laconic.sharded.projected import Exchanging, project_after, project_before
from laconic.sharded.quarters import Quarters

# The rows that each rank owns; the last one needs nothing of the first.
OWNED = [slice(0, 5), slice(5, 7), slice(7, 15)]
NUM_NODES, NUM_RANKS = 15, 3
PROJECTIONS = [(project_after, 3, 4), (project_before, 4, 2)]

Tensors = list[Tensor | None]


def dense_matrix() -> np.ndarray:
    rng = np.random.default_rng(3)
    matrix = rng.random((NUM_NODES, NUM_NODES)) * (rng.random((NUM_NODES, NUM_NODES)) < 0.4)
    matrix[OWNED[2], OWNED[0]] = 0
    return matrix


def exchanging(communicator: Communicator) -> Exchanging:
    """This rank's rows of the matrix."""
    matrix, owned = dense_matrix()[OWNED[communicator.rank]], OWNED[communicator.rank]
    others = [r for r in range(NUM_RANKS) if r != communicator.rank]
    wanted = {r: np.flatnonzero(matrix[:, OWNED[r]].any(0)) for r in others}
    columns = np.concatenate([np.arange(owned.start, owned.stop), *(wanted[r] + OWNED[r].start for r in others)])
    placed = matrix[:, columns]
    rows, sources = np.nonzero(placed)
    adjacency = Adjacency.from_edges(sources, rows, *placed.shape)
    values = placed[rows, sources][adjacency.edge_order]
    asked = [torch.from_numpy(wanted.get(r, np.empty(0, np.int64))) for r in range(NUM_RANKS)]
    exchange = RowExchange.agree(communicator, asked, len(placed))
    nothing = RowExchange.of_nothing(communicator, len(placed))
    quarters = Quarters.of(replace(adjacency, edge_order=None), len(placed))
    parts = (quarters.own_own, quarters.own_other, quarters.other_own, quarters.other_other)
    operators = [LinearOperator(part, values[mask]) for part, mask in zip(parts, quarters.masks, strict=True)]
    operator = ShardedOperator(*operators, columns=AxisExchange(exchange), rows=AxisExchange(nothing))
    return Exchanging(operator, communicator.ledger, Position("forward", 0))


def inputs(width_in: int, width_out: int, frozen: str) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"x": (NUM_NODES, width_in), "weight": (width_out, width_in), "bias": (width_out,)}
    shapes["own"] = shapes["weight"]
    tensors = {
        name: torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_(name not in frozen)
        for name, shape in shapes.items()
    }
    return {name: None if f"no {name}" in frozen else tensor for name, tensor in tensors.items()}


def gradients(out: Tensor, given: dict[str, Tensor | None], *, twice: bool) -> dict[str, Tensor]:
    """Of a sum over rows; or of that sum's gradients, where those of weights enter linearly, as ranks have parts."""
    leaves = {name: tensor for name, tensor in given.items() if tensor is not None and tensor.requires_grad}
    found = torch.autograd.grad((out**3).sum(), list(leaves.values()), create_graph=twice)
    if twice:
        terms = [(g**2).sum() if name == "x" else 0.3 * g.sum() for name, g in zip(leaves, found, strict=True)]
        found = torch.autograd.grad(sum(terms[1:], terms[0]), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("frozen", ["", "x", "weight", "x weight", "own bias", "no own", "no bias", "no own, no bias"])
@pytest.mark.parametrize(("project", "width_in", "width_out"), PROJECTIONS, ids=["after", "before"])
def test_values_and_gradients_are_those_of_dense_matrices(
    project: Callable[..., Tensor], width_in: int, width_out: int, frozen: str, twice: bool
) -> None:
    everything = inputs(width_in, width_out, frozen)
    x, weight, bias, own = everything.values()
    assert x is not None
    assert weight is not None
    expected = torch.from_numpy(dense_matrix()) @ x @ weight.t()
    expected = expected if own is None else expected + x @ own.t()
    expected = expected if bias is None else expected + bias
    expected_grads = gradients(expected, everything, twice=twice)

    def work(transport: Transport) -> tuple[Tensor, dict[str, Tensor]]:
        communicator = Communicator(transport, Ledger(transport.rank))
        mine = {
            name: None if t is None else t.detach().clone().requires_grad_(t.requires_grad)
            for name, t in everything.items()
        }
        mine["x"] = x.detach()[OWNED[transport.rank]].clone().requires_grad_(x.requires_grad)
        out = project(exchanging(communicator), mine["x"], mine["weight"], mine["bias"], mine["own"])
        return out, gradients(out, mine, twice=twice)

    found = run_ranks(NUM_RANKS, work)
    torch.testing.assert_close(torch.cat([out for out, _ in found]), expected, rtol=0, atol=1e-10)
    for name, grad in expected_grads.items():
        parts = [grads[name] for _, grads in found]
        total = torch.cat(parts) if name == "x" else torch.stack(parts).sum(0)
        torch.testing.assert_close(total, grad, rtol=1e-10, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}")


def test_without_gradients_for_rows_none_travel_back() -> None:
    def work(transport: Transport) -> set[str]:
        communicator = Communicator(transport, Ledger(transport.rank))
        given = inputs(3, 4, "x")
        rows = given["x"][OWNED[transport.rank]]
        project_after(exchanging(communicator), rows, given["weight"], None, given["own"]).sum().backward()
        return {row.phase for row in communicator.ledger.take(0)}

    assert all("backward" not in phases and "forward" in phases for phases in run_ranks(NUM_RANKS, work))

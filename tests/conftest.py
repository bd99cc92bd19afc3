"""Fixtures that several test folders share."""

from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

# A hook: which tests follow each other.
from tests.scheduling import pytest_xdist_make_scheduler  # noqa: F401

from laconic.comm import Communicator, Ledger, Transport
from laconic.comm.transport import run_ranks
from laconic.graph import Graph

GraphMaker = Callable[..., Graph]
Result = TypeVar("Result")
OnRanks = Callable[[int, Callable[[Communicator], Result]], list[Result]]


def make_random_graph(
    num_nodes: int = 60,
    num_edges: int = 300,
    num_features: int = 8,
    num_classes: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    weighted: bool = False,
) -> Graph:
    """A directed random graph with self-loops, duplicates and, nearly always, isolated nodes."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, max(1, num_nodes - 3), (2, num_edges), generator=generator)
    split = torch.randperm(num_nodes, generator=generator)
    masks = [torch.zeros(num_nodes, dtype=torch.bool) for _ in range(3)]
    for mask, rows in zip(masks, split.tensor_split([num_nodes // 2, 3 * num_nodes // 4]), strict=True):
        mask[rows] = True
    return Graph(
        edge_index=edge_index,
        x=torch.randn(num_nodes, num_features, generator=generator, dtype=dtype),
        y=torch.randint(0, num_classes, (num_nodes,), generator=generator),
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
        edge_weight=torch.rand(num_edges, generator=generator, dtype=dtype) if weighted else None,
        num_classes=num_classes,
        name="random",
    )


@pytest.fixture
def make_graph() -> GraphMaker:
    return make_random_graph


@pytest.fixture
def small_graph() -> Graph:
    return make_random_graph()


@pytest.fixture
def on_ranks() -> OnRanks:
    """Calls a function with the communicator of each of several ranks, which are threads, and returns what they return.

    An exception of one of them is raised here too.
    """
    return _on_ranks


def _on_ranks(num_ranks: int, work: Callable[[Communicator], Result]) -> list[Result]:
    def run(transport: Transport) -> Result:
        # A thread's first question takes over the number that any thread set last, even after one of its own was set.
        torch.get_num_threads()
        torch.set_num_threads(1)
        return work(Communicator(transport, Ledger(transport.rank)))

    before = torch.get_num_threads()
    try:
        # Threads share torch's generator: one that puts it back may put back what another had seeded.
        with torch.random.fork_rng(devices=[]):
            return run_ranks(num_ranks, run, timeout=20)
    finally:
        torch.set_num_threads(before)

"""Which grid is chosen: what a plan says of each, against what is then counted."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.unit.grids.product_runs import chunks_of, random_graph, received_words

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid, all_grids
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.errors import ConfigError
from laconic.grids.plan import make_plan
from laconic.grids.survey import GridSizes, survey
from laconic.strategies import parse_strategy


def sizes_of(graph, num_ranks: int, *, is_sparse: bool) -> list[GridSizes]:
    read, chunk_map = chunks_of(graph, num_ranks)

    def run(transport):
        return survey(read, chunk_map, Communicator(transport, Ledger(transport.rank)), is_sparse=is_sparse)

    found = run_ranks(num_ranks, run)
    assert all(each == found[0] for each in found)
    return found[0]


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("num_ranks", [4, 6])
def test_the_words_of_every_grid_are_those_that_are_counted(num_ranks, is_sparse):
    graph, width = random_graph(49, 110), 12
    for sizes in sizes_of(graph, num_ranks, is_sparse=is_sparse):
        counted = received_words(graph, sizes.grid, width, is_sparse=is_sparse)
        assert max(forward + backward for forward, backward in counted) / 2 == pytest.approx(sizes.words * width)


def test_the_edges_of_every_block_are_counted():
    graph = random_graph(50, 200)
    for sizes in sizes_of(graph, 4, is_sparse=True):
        grid, of_rank = sizes.grid, np.arange(50) * 4 // 50
        i, k = np.array([grid.place_of(int(rank))[:2] for rank in of_rank]).T
        sources, destinations = graph.edge_index.numpy()
        assert sizes.num_edges == np.bincount(i[destinations] * grid.pk + k[sources]).max()


def plan_of(sizes, **changed):
    setting = {"width": 64, "narrowest": 8, "itemsize": 4, "link_mbit": 1.0, "limit_bytes": 1 << 30}
    return make_plan(sizes, **{**setting, **changed})


def test_memory_and_narrow_layers_keep_a_grid_from_being_chosen():
    sizes = sizes_of(random_graph(400, 40_000), 8, is_sparse=False)
    assert len(sizes) == len(all_grids(8))
    assert plan_of(sizes).best.grid == Grid(1, 1, 8)
    assert plan_of(sizes, narrowest=7).best.grid.pj < 8
    needed = {candidate.grid: candidate.num_bytes for candidate in plan_of(sizes).candidates}
    squeezed = plan_of(sizes, limit_bytes=needed[Grid(1, 1, 8)] // 3)
    assert squeezed.best.grid.pi * squeezed.best.grid.pk > 1
    assert squeezed.best.num_bytes <= needed[Grid(1, 1, 8)] // 3
    with pytest.raises(ConfigError, match=r"No grid fits into the memory of a rank, 10\.0 KiB"):
        plan_of(sizes, limit_bytes=10 << 10)


def test_the_table_has_a_line_for_each_grid_and_says_why_not():
    sizes = sizes_of(random_graph(60, 200), 4, is_sparse=True)
    lines = plan_of(sizes, narrowest=2).table().splitlines()
    assert len(lines) == 1 + len(all_grids(4))
    assert lines[1].endswith("chosen")
    assert next(line for line in lines if "1 x 1 x 4" in line).endswith("all edges on every rank  slices 2 features")


def test_auto_trains_on_the_grid_of_its_plan():
    graph = random_graph(60, 200)
    graph = dataclasses.replace(graph, x=torch.ones(60, 8, dtype=torch.float64))

    def run(transport):
        strategy = parse_strategy("full_graph(partitioner=random)")
        strategy.place(graph, Communicator(transport, Ledger(transport.rank)))
        return strategy.plan.best.grid, strategy.placement.grid

    (chosen, used), *others = run_ranks(4, run)
    assert chosen == used
    assert all(other == (chosen, chosen) for other in others)
    # Two classes: features are sliced for two ranks at most.
    assert chosen.pj <= 2

"""Which grid is chosen: what a plan says of each, against what is then counted."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.placing import place
from tests.unit.sharded.product_runs import chunks_of, random_graph, received_words
from torch_geometric.nn import GAT, GCN, GraphSAGE, SGConv

from laconic.attach.aggregator import Linear
from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid, all_grids
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.errors import ConfigError
from laconic.sharded import edge_placement
from laconic.sharded import placement as placements
from laconic.sharded.block import BlockMap
from laconic.sharded.cover import Covers
from laconic.sharded.edge_placement import find_covers, with_edges_at
from laconic.sharded.plan import make_plan
from laconic.sharded.survey import GridSizes, survey
from laconic.sharded.workload import Workload


def sizes_of(graph, num_ranks: int, *, is_sparse: bool, is_covered: bool = False) -> list[GridSizes]:
    read, chunk_map = chunks_of(graph, num_ranks)

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        one_axis = placements.place(read, BlockMap.one_axis(chunk_map), communicator, is_sparse=is_sparse)
        return survey(one_axis, find_covers(one_axis, "cover") if is_covered else None, is_sparse=is_sparse)

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


@pytest.mark.parametrize("num_ranks", [2, 4, 6])
def test_one_axis_is_weighed_by_the_rows_sums_and_edges_of_its_cover(num_ranks):
    graph, width = random_graph(49, 110), 12
    read, chunk_map = chunks_of(graph, num_ranks)

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        one_axis = placements.place(read, BlockMap.one_axis(chunk_map), communicator)
        placement = with_edges_at(one_axis, "cover")
        communicator.ledger.take(0)
        operator, x = placement.operators.of(Linear("sum")), torch.ones(placement.shard.num_rows, width).double()
        operator.multiply(x, width), operator.transposed.multiply(x, width)
        received = [row.num_bytes for row in communicator.ledger.take(1) if row.direction == "received"]
        adjacency = placement.block.adjacency
        return sum(received) / 8, adjacency.num_edges, adjacency.num_columns + adjacency.num_rows - len(x)

    words, num_edges, num_rows = map(max, zip(*run_ranks(num_ranks, run), strict=True))
    plain, covered = (sizes_of(graph, num_ranks, is_sparse=True, is_covered=each) for each in (False, True))
    assert covered[0].grid == Grid(pi=num_ranks)
    assert covered[0].words * width == words / 2 < plain[0].words * width
    assert (covered[0].num_edges, covered[0].num_rows) == (num_edges, num_rows)
    assert covered[1:] == plain[1:]


def test_a_cover_that_does_not_fit_is_not_looked_for_and_one_axis_is_weighed_by_its_halo_rows(monkeypatch):
    graph = random_graph(60, 200, num_features=12)
    monkeypatch.setattr(edge_placement, "memory_limit", lambda communicator: 1)
    monkeypatch.setattr(Covers, "of", lambda *arguments: pytest.fail("a cover was looked for"))
    copies = [GCN(12, 9, 2, 5).double() for _ in range(4)]

    def run(transport):
        placed = place("full_graph(partitioner=random)", graph, copies[transport.rank], transport)
        one_axis = next(each.sizes for each in placed.plan.candidates if each.grid == Grid(pi=4))
        named = place('full_graph(partitioner=random, grid="1d")', graph, copies[transport.rank], transport)
        splits = named.placement.exchange.splits
        return one_axis, (sum(splits.send) + sum(splits.receive)) / 2

    found = run_ranks(4, run)
    # Rows that come forward, and gradients that come backward for the rows that went.
    assert found[0][0].words == max(words for _, words in found)
    assert found[0][0].num_messages == 3


def test_the_edges_of_every_block_are_counted():
    graph = random_graph(50, 200)
    for sizes in sizes_of(graph, 4, is_sparse=True):
        grid, of_rank = sizes.grid, np.arange(50) * 4 // 50
        i, k = np.array([grid.coordinates_of(int(rank))[:2] for rank in of_rank]).T
        sources, destinations = graph.edge_index.numpy()
        assert sizes.num_edges == np.bincount(i[destinations] * grid.pk + k[sources]).max()


def plan_of(sizes, **changed):
    workload = Workload(
        num_features=64,
        products=changed.pop("products", (64,)),
        narrowest=changed.pop("narrowest", 8),
        objection=lambda grid: "",
    )
    setting = {"workload": workload, "itemsize": 4, "link_mbit": 1.0, "limit_bytes": 1 << 30}
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


def test_stages_need_less_memory_where_many_blocks_would_come_at_once():
    sizes = sizes_of(random_graph(400, 40_000), 8, is_sparse=False)
    at_once, staged = ({c.grid: c for c in plan_of(sizes, is_staged=staged).candidates} for staged in (False, True))
    words = {each.grid: (each.num_rows, each.num_rows_staged) for each in sizes}
    # Blocks of 50 rows: the own one and seven others, or two of them; along one axis and along the other.
    assert words[Grid(8, 1, 1)] == words[Grid(1, 8, 1)] == (400, 150)
    # Four row groups of 100: three others of 50 along i, sums for one other along k.
    assert words[Grid(4, 2, 1)] == (50 + 150 + 50, 50 + 100 + 50)
    for grid in (Grid(8, 1, 1), Grid(1, 8, 1)):
        assert at_once[grid].num_bytes - staged[grid].num_bytes == 250 * 64 * 4
    assert staged[Grid(1, 1, 8)].num_bytes == at_once[Grid(1, 1, 8)].num_bytes


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
        placed = place("full_graph(partitioner=random)", graph, GCN(8, 8, 2, 2).double(), transport)
        return placed.plan.best.grid, placed.placement.grid

    (chosen, used), *others = run_ranks(4, run)
    assert chosen == used
    assert all(other == (chosen, chosen) for other in others)
    # Two classes: features are sliced for two ranks at most.
    assert chosen.pj <= 2


def workload_of(model) -> Workload:
    read, chunk_map = chunks_of(random_graph(60, 200, num_features=12), 1)
    communicator = Communicator(LocalTransport(), Ledger(0))
    return Workload.of_model(model.double(), placements.place(read, BlockMap.one_axis(chunk_map), communicator))


@pytest.mark.parametrize(
    ("build", "products"),
    [
        # The first layer's aggregate is kept; the others multiply on the narrower side, and back; then evaluation.
        (lambda: GCN(12, 9, 3, 5), (9, 5, 5, 9, 9, 5)),
        (lambda: GraphSAGE(12, 6, 2, 7), (6, 6, 6)),
        # Powers of the features are kept too.
        (lambda: SGConv(12, 5, K=3), ()),
        # Rows of 8 go rather than two heads of 5.
        (lambda: GAT(12, 8, 2, 5, heads=2), (8, 8, 8)),
    ],
)
def test_a_model_is_asked_for_its_products(build, products):
    workload = workload_of(build())
    assert sorted(workload.products) == sorted(products)


def test_what_a_model_cannot_use_is_not_chosen_however_fast():
    sizes = sizes_of(random_graph(400, 40_000), 8, is_sparse=False)
    attention = workload_of(GAT(12, 8, 2, 8))
    assert plan_of(sizes, workload=attention).best.grid.pj == 1
    assert any(c.objection == "needs whole rows" for c in plan_of(sizes, workload=attention).candidates)
    largest = workload_of(GraphSAGE(12, 8, 2, 8, aggr="max"))
    assert plan_of(sizes, workload=largest).best.grid == Grid(8, 1, 1)
    narrow = workload_of(GCN(12, 3, 2, 8))
    assert plan_of(sizes, workload=narrow).best.grid.pj <= 3


def test_the_words_of_an_epoch_are_those_that_are_predicted_for_it():
    graph = random_graph(60, 200, num_features=12)
    torch.manual_seed(0)
    copies = [GCN(12, 9, 3, 5).double() for _ in range(4)]

    def run(transport):
        placed = place("full_graph(partitioner=random)", graph, copies[transport.rank], transport)
        predicted = placed.start(seed=0).predict_traffic()
        rows = [row for row in predicted if row.epoch == 1 and row.operation == "all_to_all"]
        return placed.plan, sum(row.num_bytes for row in rows) / 8 / 2

    found = run_ranks(4, run)
    plan = found[0][0]
    assert "words/epoch" in plan.table()
    # The plan has the busiest rank of a product and its transpose, the mean of both ways.
    assert max(words for _, words in found) <= plan.best.words
    assert max(words for _, words in found) >= 0.9 * plan.best.words

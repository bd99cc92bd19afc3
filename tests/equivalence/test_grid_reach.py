"""Rows of other ranks that are computed here on grids of one axis: as one machine computes them; refused elsewhere."""

import logging

import pytest
from tests.equivalence.grid_runs import grid_outcomes
from tests.equivalence.halo_runs import IN, OUT, check_equal, check_traffic, make_graph
from tests.placing import place
from torch_geometric.nn import GAT, GCN, GraphSAGE

from laconic.comm import Communicator, Ledger, run_ranks
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.strategies import parse_strategy


def sage():
    return GraphSAGE(IN, 8, 3, OUT, dropout=0.3)


@pytest.mark.parametrize(
    ("grid", "settings"),
    [
        ("1d", "reach=1"),
        ("1d", "reach=2, edges=source"),
        ("grid(pi=3)", "reach=1, edges=cover"),
        ("auto", "reach=2"),
        ("auto", "edges=cover, link_mbit=0.001"),
    ],
)
def test_rows_computed_here_on_a_grid_of_one_axis_give_what_one_machine_gives(grid, settings):
    single, ranks = grid_outcomes(sage, make_graph(), 3, grid, 20, options=settings)
    check_equal(single, ranks)
    check_traffic(ranks)


def hops_of(text: str, build=sage, num_ranks: int = 4, graph=None) -> list[tuple[int, int]]:
    """The ranks along i, and the hops, that each rank has."""
    copies = [build().double() for _ in range(num_ranks)]

    def run(transport):
        placed = place(text, graph or make_graph(), copies[transport.rank], transport)
        placed.check()
        return placed.placement.grid.pi, len(placed.start(seed=0).placement.hops)

    return run_ranks(num_ranks, run)


def test_a_named_grid_computes_nothing_here_unless_asked_and_an_automatic_one_by_cost():
    slow = "link_mbit=0.001, partitioner=random"
    assert hops_of(f"full_graph(grid='1d', {slow})") == [(4, 0)] * 4
    # As many hops as the model has exchanges: nothing but gradients travels then.
    assert hops_of(f"full_graph(edges=destination, {slow})") == [(4, 2)] * 4
    assert hops_of("full_graph(edges=destination, partitioner=random, link_mbit=1e9)") == [(4, 0)] * 4


def test_a_setting_of_one_axis_makes_the_plan_weigh_that_grid_alone_and_the_log_says_so(caplog):
    # The plan would choose slices of the features here.
    text = "full_graph(partitioner=random, link_mbit=0.001{})"
    build = lambda: GCN(IN, 8, 2, OUT)  # noqa: E731
    assert hops_of(text.format(""), build)[0][0] < 4
    with caplog.at_level(logging.INFO):
        assert hops_of(text.format(", reach=1"), build) == [(4, 1)] * 4
    assert "Grids of 4 ranks with one axis, which reach=1 needs" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("grid='2d', reach=1", r'reach=1 is for grids of one axis.*grid="2d" \(pi=2, pk=2, pj=1\).*Use grid="1d"'),
        ("grid='feature', reach=2", r"reach=2 is for grids of one axis.*pj=4"),
        ("grid='1d_columns', reach=1", r"reach=1 is for grids of one axis.*pk=4"),
        ('grid="1.5d_replicated(c=1)", reach=1', r"reach=1 is for grids of one axis.*1.5d_replicated"),
        ("grid='2d_summa', reach=1", r"reach=1 is for grids of one axis.*2d_summa"),
        ("grid='1d', exchange=dense, reach=1", "reach=1 is for .*exchange=dense.* with exchange=sparse"),
        ("staged=True, reach=1", "reach=1 is for .*staged=True"),
        ("exchange=dense, edges=cover, reach=1", "edges=cover and reach=1 is for .*leave edges=cover and reach=1 out"),
        ("grid='2d', edges=cover", "edges=cover is for grids of one axis"),
    ],
)
def test_a_reach_on_other_grids_is_refused_on_all_ranks_before_anything_is_sent(settings, words):
    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        with pytest.raises(ConfigError, match=words):
            place(f"full_graph({settings})", make_graph(), sage(), communicator)
        return communicator.ledger.take(0)

    assert run_ranks(4, run) == [[]] * 4


@pytest.mark.parametrize(
    ("settings", "build", "words"),
    [
        ("reach=3", sage, "exchanges rows 2 times. Use reach=2"),
        ("reach=1", lambda: GAT(IN, 8, 2, OUT), r"convs\.0 is a GATConv.*no fixed matrix"),
    ],
)
def test_a_reach_that_the_model_does_not_allow_is_refused_by_name(settings, build, words):
    with pytest.raises((ConfigError, UnsupportedModelError), match=words):
        hops_of(f"full_graph(grid='1d', {settings})", build)


def test_a_reach_is_a_number_of_hops():
    with pytest.raises(ConfigError, match="full_graph: reach should be 0 or more hops"):
        parse_strategy("full_graph(reach=-1)")
    with pytest.raises(ConfigError, match="reach=1 needs two nodes at least on every rank"):
        hops_of("full_graph(grid='1d', reach=1)", graph=make_graph(5))

"""Grids through codecs: identity and rate 1 give what is exact; others what was predicted to the byte, and learn."""

import dataclasses

import numpy as np
import pytest
import torch
from tests.equivalence.grid_runs import grid_outcomes
from tests.equivalence.halo_runs import EPOCHS, IN, OUT, check_equal, check_traffic, make_graph
from tests.placing import place
from torch_geometric.nn import GAT, GCN, GraphSAGE

from laconic.comm.codecs import CODECS
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.errors import ConfigError
from laconic.strategies import parse_strategy

GRIDS = [(3, "1d"), (3, "1d_columns"), (4, "2d")]


def sage():
    return GraphSAGE(IN, 8, 3, OUT, dropout=0.3)


def attention():
    return GAT(IN, 8, 2, OUT, heads=2)


@pytest.mark.parametrize(("num_ranks", "grid"), GRIDS)
@pytest.mark.parametrize("options", ["codec=identity", 'codec=subset, schedule="constant(value=1.0)"'])
def test_without_loss_a_coded_grid_is_exact(num_ranks, grid, options):
    single, ranks = grid_outcomes(sage, make_graph(), num_ranks, grid, EPOCHS, options=options)
    check_equal(single, ranks)
    check_traffic(ranks)


@pytest.mark.parametrize("exchange", ["sparse", "dense"])
@pytest.mark.parametrize("name", sorted(CODECS))
def test_every_codec_sends_what_was_predicted_and_keeps_ranks_together(name, exchange):
    options = f'codec={name}, schedule="constant(value=4.0)"'
    _, ranks = grid_outcomes(sage, make_graph(), 4, "2d", 3, exchange, options)
    for rank in ranks:
        assert np.isfinite(rank.losses).all()
        for parameter, value in rank.state.items():
            assert torch.equal(value, ranks[0].state[parameter]), f"{parameter} differs between ranks"
    if CODECS[name].is_fixed_size:
        check_traffic(ranks)


# Of attention only rows that are gathered are coded: what is scattered are sums of weights too.
@pytest.mark.parametrize(
    ("num_ranks", "grid", "build"),
    [*((*each, sage) for each in GRIDS), (3, "1d", attention), (4, "2d", attention)],
)
def test_fewer_bytes_are_close_to_exact_where_numbers_are_rounded(num_ranks, grid, build):
    options = 'codec="quantize(bits=8)", schedule="constant(value=4.0)"'
    single, ranks = grid_outcomes(build, make_graph(), num_ranks, grid, 5, options=options)
    _, exact = grid_outcomes(build, make_graph(), num_ranks, grid, 5)
    check_traffic(ranks)
    np.testing.assert_allclose(ranks[0].losses, single.losses, rtol=0.05)
    assert ranks[0].losses != single.losses

    def received(runs, phase):
        rows = [row for rank in runs for row in rank.counted[2] if row.phase == phase and row.operation == "all_to_all"]
        return sum(row.num_bytes for row in rows)

    for phase in ("forward", "backward"):
        assert 0 < received(ranks, phase) < received(exact, phase)
    # What is evaluated goes as it is.
    assert received(ranks, "evaluation") == received(exact, "evaluation")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('full_graph(grid="feature", codec=quantize)', 'grid="feature" has pj=4. Use 1d'),
        ('full_graph(grid="2d_summa", codec=quantize)', "whole rows and blocks that stay where they are"),
        ('full_graph(grid="2d_summa", staged=True)', "has no stages"),
    ],
)
def test_layouts_without_codecs_or_stages_say_so_on_all_ranks_before_anything_is_sent(text, words):
    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        with pytest.raises(ConfigError, match=words):
            place(text, make_graph(), ranks=communicator)
        return communicator.ledger.take(0)

    assert run_ranks(4, run) == [[]] * 4


def test_codecs_and_stages_exclude_each_other():
    with pytest.raises(ConfigError, match="Leave out one of the two"):
        parse_strategy("full_graph(staged=True, codec=quantize)")


def test_auto_slices_no_rows_that_are_coded():
    graph = dataclasses.replace(make_graph(), num_classes=OUT)
    model = GCN(IN, 8, 2, OUT).double()

    def run(transport):
        text = "full_graph(codec=quantize, link_mbit=0.001, partitioner=random)"
        return place(text, graph, model, transport).placement.grid

    assert {grid.pj for grid in run_ranks(4, run)} == {1}

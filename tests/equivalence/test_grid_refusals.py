"""What a grid cannot do is refused by name, on all ranks, before anything is sent; and what would work is said."""

import dataclasses
import re
import shutil

import pytest
import torch
from tests.equivalence.halo_runs import IN, OUT, Stack, make_graph
from tests.placing import place
from torch import nn
from torch_geometric.nn import APPNP, GAT, GCN, ChebConv, GraphSAGE, TransformerConv

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.errors import ConfigError, StoreError, UnsupportedModelError
from laconic.graph import Graph
from laconic.store import open_store, write_store
from laconic.strategies import parse_strategy


def refusals(strategy_text: str, build, num_ranks: int = 4, graph: Graph | None = None) -> list[str]:
    """What each rank says when it checks a model; and that checking sends nothing."""
    model = build().double()

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        placed = place(strategy_text, graph or make_graph(), model, communicator)
        communicator.ledger.take(0)
        with pytest.raises(UnsupportedModelError) as caught:
            placed.check()
        assert communicator.ledger.take(0) == []
        return str(caught.value)

    return run_ranks(num_ranks, run)


@pytest.mark.parametrize(
    ("grid", "build", "words"),
    [
        ("feature", lambda: GAT(IN, 8, 2, OUT), "convs.0 is a GATConv, whose aggregation is no fixed matrix"),
        ("2d", lambda: GraphSAGE(IN, 8, 2, OUT, aggr="max"), "convs.0 is a SAGEConv"),
        ("2d", lambda: TransformerConv(IN, OUT), "the model is a TransformerConv"),
        ("1d", lambda: ChebConv(IN, OUT, K=2), "ChebConv, which several ranks cannot share"),
        ("feature", lambda: GCN(IN, 8, 2, 3), "aggregates rows of 3 features, which the grid slices for pj=4 ranks"),
        ("2d", lambda: Stack(GCN(IN, 8, 1), nn.SyncBatchNorm(8)), "layers.1 is a SyncBatchNorm"),
        ("2d_summa", lambda: GAT(IN, 8, 2, OUT), "convs.0 is a GATConv, whose aggregation is no fixed matrix"),
    ],
)
def test_models_that_a_grid_cannot_train_are_refused_on_all_ranks(grid, build, words):
    for message in refusals(f'full_graph(grid="{grid}", partitioner=random)', build):
        assert words in message


def undirected() -> Graph:
    graph = make_graph()
    return dataclasses.replace(graph, edge_index=torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: GraphSAGE(IN, 8, 2, OUT), "convs.0 is a SAGEConv, whose matrix is not its own transpose"),
        (lambda: Stack(nn.Linear(IN, OUT), APPNP(K=2, alpha=0.1, dropout=0.5)), "layers.1 is a APPNP.*drops edges"),
    ],
)
def test_a_symmetric_shortcut_is_refused_for_matrices_that_are_not(build, words):
    for message in refusals('full_graph(grid="2d_summa(symmetric=True)")', build, graph=undirected()):
        assert re.search(words, message)
        assert 'Use grid="2d_summa"' in message


@pytest.mark.parametrize("change", ["direction", "weight"])
def test_a_symmetric_shortcut_is_refused_on_all_ranks_for_a_directed_graph(change):
    graph = undirected()
    weight = torch.ones(graph.num_edges)
    if change == "weight":
        # One edge, whose reverse stays as it was.
        weight[int((graph.edge_index[0] != graph.edge_index[1]).nonzero()[0])] = 2.0
    else:
        graph = dataclasses.replace(graph, edge_index=graph.edge_index[:, 1:])
        weight = weight[1:]
    graph = dataclasses.replace(graph, edge_weight=weight)

    def run(transport):
        with pytest.raises(ConfigError, match="edges without their reverse, or with another weight"):
            place('full_graph(grid="2d_summa(symmetric=True)", partitioner=random)', graph, ranks=transport)
        return True

    assert run_ranks(4, run) == [True] * 4


def test_auto_chooses_a_grid_that_the_model_can_use():
    model = GAT(IN, 8, 2, OUT).double()

    def run(transport):
        placed = place("full_graph(partitioner=random, link_mbit=0.001)", make_graph(), model, transport)
        placed.check()
        return str(placed.placement.grid)

    assert set(run_ranks(4, run)) == {"grid(pi=2, pk=2, pj=1)"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('full_graph(grid="2d")', r"square number of ranks, such as 1 or 4; there are 3.*\(3, 1, 1\)"),
        ('full_graph(grid="1.5d(c=2)")', "c that divides the number of ranks, 3; got c=2. Use c = 1 or 3"),
        ('full_graph(grid="1.5d_replicated(c=3)")', "number of ranks, 3 and whose square is not larger; .* Use c = 1"),
        ('full_graph(grid="2d_summa")', "2d_summa needs a square number of ranks"),
        ('full_graph(grid="grid(pi=2, pk=2)")', r"is for 4 ranks, but there are 3.*\(3, 1, 1\), \(1, 3, 1\)"),
    ],
)
def test_grids_that_do_not_fit_the_ranks_are_refused(text, words):
    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        with pytest.raises(ConfigError, match=words):
            place(text, make_graph(), ranks=communicator)
        return communicator.ledger.take(0)

    # All of them, and nothing was said.
    assert run_ranks(3, run) == [[], [], []]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('full_graph(grid="5d")', "Unknown grid '5d'. Choices: 1.5d, 1.5d_replicated, 1d,"),
        ("full_graph(exchange=spare)", "Unknown exchange 'spare'. Choices: dense, sparse. Did you mean 'sparse'"),
        ("full_graph(link_mbit=0)", "link_mbit should be above 0"),
        ("full_graph(codec=subst)", "Unknown codec 'subst'.*Did you mean 'subset'"),
        ("full_graph(schedule=lineal)", "Unknown schedule 'lineal'"),
    ],
)
def test_settings_are_checked_when_they_are_read(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_strategy(text)


def test_more_ranks_than_chunks_are_refused(tmp_path):
    graph = make_graph()
    write_store(graph, torch.arange(graph.num_nodes).numpy() % 2, tmp_path / "store")

    def run(transport):
        place("full_graph", open_store(tmp_path / "store"), ranks=transport)

    with pytest.raises(ConfigError, match="has 2 chunks, and each of the 3 ranks needs one"):
        run_ranks(3, run)


@pytest.mark.parametrize("grid", ["2d", "auto"])
@pytest.mark.parametrize("name", ["chunk_00003/bridge_src.npy", "chunk_00003/x.npy"])
def test_what_one_rank_lacks_is_told_by_all_of_them(name, grid, tmp_path):
    graph = make_graph()
    for rank in range(4):
        write_store(graph, torch.arange(graph.num_nodes).numpy() % 4, tmp_path / f"store{rank}")
    (tmp_path / "store3" / name).unlink()

    def run(transport):
        store = open_store(tmp_path / f"store{transport.rank}")
        with pytest.raises(StoreError, match=rf"Not every rank can read what it needs. rank 3: .*{name}: a file of"):
            place(f'full_graph(grid="{grid}")', store, ranks=transport)
        return True

    assert run_ranks(4, run) == [True] * 4


def test_chunks_that_a_rank_does_not_read_need_not_be_there(tmp_path):
    graph = make_graph()
    for rank in range(4):
        write_store(graph, torch.arange(graph.num_nodes).numpy() % 4, tmp_path / f"store{rank}")
        row_group = rank // 2
        for number in range(4):
            if number // 2 != row_group:
                shutil.rmtree(tmp_path / f"store{rank}" / f"chunk_{number:05d}")
            elif number != rank:
                (tmp_path / f"store{rank}" / f"chunk_{number:05d}" / "x.npy").unlink()

    def run(transport):
        store = open_store(tmp_path / f"store{transport.rank}")
        return place('full_graph(grid="2d")', store, ranks=transport).shard.num_rows

    assert sum(run_ranks(4, run)) == graph.num_nodes

"""`grappa` against `single`: ranks that hold all chunks are one machine, whatever the correction."""

import numpy as np
import pytest
from tests.equivalence.halo_runs import make_graph
from tests.equivalence.isolated_runs import check_alike, check_equal, parts_of, run_grappa, run_single
from tests.equivalence.test_gradient_only import EPOCHS, MODELS, PLAIN, WITHOUT_NODES, Weighted, is_finite

from laconic.store import open_store, write_store

ALL_HELD = "variable={}, repartition_every=4, partitioner=random"
# The rest of the models runs on one number of ranks: what differs between numbers does not differ between layers.
ON_ANY_NUMBER = ["GCN dropout", "SAGE-5 batch norm, dropout", "GAT dropout", "GIN batch norm", "user's own"]


@pytest.mark.parametrize("name", MODELS)
def test_one_rank_alone_is_one_machine(name):
    graph, settings = make_graph(), "repartition_every=3, correction=node, hops=2"
    check_equal(run_single(MODELS[name], graph, EPOCHS), run_grappa(MODELS[name], graph, 1, settings, EPOCHS))


@pytest.mark.parametrize("name", MODELS)
def test_three_ranks_that_hold_all_chunks_are_one_machine(name):
    graph = make_graph()
    ranks = run_grappa(MODELS[name], graph, 3, ALL_HELD.format(2), EPOCHS)
    check_equal(run_single(MODELS[name], graph, EPOCHS), ranks)


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", ON_ANY_NUMBER)
def test_any_number_of_ranks_that_hold_all_chunks_is_one_machine(name, num_ranks):
    graph = make_graph()
    ranks = run_grappa(MODELS[name], graph, num_ranks, ALL_HELD.format(num_ranks - 1), EPOCHS)
    check_equal(run_single(MODELS[name], graph, EPOCHS), ranks)


@pytest.mark.parametrize(
    "settings",
    [
        "correction=node, hops=2",
        "correction=batch, shrinkage=auto",
        "correction=sweep",
        "correction=degree",
        "correction=node, supply=peers",
        "schedule=affinity",
    ],
)
def test_corrections_of_nothing_change_nothing(settings):
    graph = make_graph()
    ranks = run_grappa(PLAIN["SAGE-3"], graph, 3, f"{ALL_HELD.format(2)}, {settings}", EPOCHS)
    check_equal(run_single(PLAIN["SAGE-3"], graph, EPOCHS), ranks)
    assert all(row.mean == row.minimum == 1.0 for rank in ranks for row in rank.coverage)


def test_edge_weights_have_their_part():
    graph = make_graph(weighted=True)
    check_equal(run_single(Weighted, graph, EPOCHS), run_grappa(Weighted, graph, 3, ALL_HELD.format(2), EPOCHS))


@pytest.mark.parametrize("name", ["SAGE-3", "GAT-2", "user's own"])
def test_ranks_without_a_training_node_take_part(name, tmp_path):
    graph = make_graph()
    # The first third of the nodes are the training ones.
    write_store(graph, np.arange(60) * 3 // 60, tmp_path / "store")
    ranks = run_grappa(PLAIN[name], open_store(tmp_path / "store"), 3, "variable=2, correction=node", EPOCHS)
    check_equal(run_single(PLAIN[name], graph, EPOCHS), ranks)


@pytest.mark.parametrize("name", WITHOUT_NODES)
def test_ranks_without_any_node_take_part(name):
    graph = make_graph(5)
    assert len(set(parts_of(graph, 8).tolist())) < 8
    ranks = run_grappa(MODELS[name], graph, 8, "variable=1, correction=node, partitioner=random", 4)
    check_alike(ranks)
    assert is_finite(ranks[0])


@pytest.mark.parametrize("supply", ["storage", "peers"])
def test_a_rank_of_many_chunks_may_hold_all_of_them(supply):
    graph = make_graph()
    settings = f"chunks=8, variable=4, partitioner=random, supply={supply}"
    ranks = run_grappa(MODELS["SAGE-5 batch norm, dropout"], graph, 2, settings, EPOCHS)
    check_equal(run_single(MODELS["SAGE-5 batch norm, dropout"], graph, EPOCHS), ranks)

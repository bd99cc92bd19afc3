"""Changes that cannot be made: the same error on all ranks, and the graph is as it was."""

import pytest
import torch
from tests.equivalence.change_runs import begin, draw_change
from tests.equivalence.coded_runs import sage, step
from tests.equivalence.halo_runs import IN, make_graph

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.errors import ConfigError, DataError
from laconic.graph import GraphChange, NewNodes
from laconic.partitioners import PARTITIONERS, assign_parts

GRAPH = make_graph(90)
ID = GRAPH.node_ids.tolist()
EDGES = GRAPH.node_ids[GRAPH.edge_index]
ONCE = next(edge for edge in EDGES.T.tolist() if EDGES.T.tolist().count(edge) == 1)
MISSING = next([ID[0], v] for v in ID if [ID[0], v] not in EDGES.T.tolist())


def edges(*pairs):
    return torch.tensor(pairs).T


def nodes(num_new: int = 1, **fields):
    x = torch.ones(num_new, IN, dtype=torch.float64)
    return NewNodes(**{"ids": torch.arange(4000, 4000 + num_new), "x": x, **fields})


WRONG = {
    "an edge that is not there": (
        GraphChange(remove_edges=edges(ONCE, MISSING)),
        rf"remove_edges holds {MISSING[0]} -> {MISSING[1]}, but there is none in the graph",
    ),
    "an edge removed more often than it is there": (
        GraphChange(remove_edges=edges(ONCE, ONCE)),
        rf"remove_edges holds {ONCE[0]} -> {ONCE[1]}, but there are fewer than the 2 that are listed",
    ),
    "an edge removed of an unknown node": (
        GraphChange(remove_edges=edges([ID[0], 7777])),
        rf"remove_edges holds {ID[0]} -> 7777, but node 7777 is not in the graph",
    ),
    "an edge to an unknown node": (
        GraphChange(add_edges=edges([ID[0], ID[1]], [ID[0], 7777])),
        rf"add_edges holds {ID[0]} -> 7777, but node 7777 is not in the graph then",
    ),
    "an edge to a node that leaves": (
        GraphChange(add_edges=edges([ID[0], ID[1]]), remove_nodes=torch.tensor([ID[1]])),
        rf"add_edges holds {ID[0]} -> {ID[1]}, but node {ID[1]} is not in the graph then",
    ),
    "a node removed twice at once": (
        GraphChange(remove_nodes=torch.tensor([ID[3], ID[3]])),
        rf"remove_nodes holds node {ID[3]} 2 times",
    ),
    "a node that is not there": (
        GraphChange(remove_nodes=torch.tensor([ID[3], 7777])),
        r"remove_nodes holds node 7777, which is not in the graph; it may have been removed before",
    ),
    "a new node that is there": (
        GraphChange(add_nodes=nodes(ids=torch.tensor([ID[5]]))),
        rf"add_nodes holds node {ID[5]}, which the graph has already",
    ),
    "features of the wrong width": (
        GraphChange(add_nodes=nodes(x=torch.ones(1, IN + 1, dtype=torch.float64))),
        rf"add_nodes.x should be floating point of shape \(1, {IN}\).*got float64 of shape \(1, {IN + 1}\)",
    ),
    "features that are not finite": (
        GraphChange(add_nodes=nodes(x=torch.full((1, IN), torch.nan))),
        r"NaN or infinite values, the first for node 4000",
    ),
    "a class that there is not": (
        GraphChange(add_nodes=nodes(y=torch.tensor([4]), train_mask=torch.tensor([True]))),
        r"add_nodes.y should lie between 0 and 3.* node 4000 has 4",
    ),
    "a mask without labels": (
        GraphChange(add_nodes=nodes(train_mask=torch.tensor([True]))),
        r"node 4000 is in a mask, but add_nodes.y was left out",
    ),
    "weights where there are none": (
        GraphChange(add_edges=edges([ID[0], ID[1]]), add_weights=torch.ones(1)),
        r"add_weights was given, but the edges of this graph have no weights",
    ),
    "edges of the wrong shape": (
        GraphChange(add_edges=torch.zeros(3, 2, dtype=torch.int64)),
        r"add_edges should be int64 of shape \(2, edges\).*got int64 of shape \(3, 2\)",
    ),
    "all training nodes": (
        GraphChange(remove_nodes=GRAPH.node_ids[GRAPH.train_mask]),
        r"remove_nodes takes all 30 nodes of train_mask",
    ),
}


@pytest.mark.parametrize("codec", ["identity", "error_feedback"])
@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_changed_is_refused_on_all_ranks_and_nothing_is(name, codec):
    change, told = WRONG[name]
    models = [sage() for _ in range(3)]

    def on_rank(transport):
        torch.set_num_threads(1)
        model, communicator = models[transport.rank], Communicator(transport, Ledger(transport.rank))
        worker = begin(f"exchange(codec={codec}, partitioner=random)", GRAPH, model, communicator)
        before, loss = worker.start_epoch(1), step(worker, 1)
        with pytest.raises(DataError, match=told):
            worker.change(change)
        assert worker.start_epoch(2) is before
        if codec == "identity":
            assert torch.equal(step(worker, 2), loss)
        # The next change is made as if there had been none before.
        worker.change(draw_change(GRAPH, 0))
        assert worker.placement.exchange.version == 1
        return float(step(worker, 2))

    assert len(set(run_ranks(3, on_rank))) == 1


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            GraphChange(remove_edges=edges(ONCE)),
            r"change.remove_edges is int64 of shape \(2, 0\) on ranks 0, 2 and .*Give all ranks the same change",
        ),
        (GraphChange(), r"change.remove_nodes is int64 of shape \(1,\).* and int64 of shape \(0,\) on rank 1"),
        (GraphChange(remove_nodes=torch.tensor([ID[4]])), r"change.remove_nodes is int64 of shape \(1,\), \w+ on"),
        (GraphChange(remove_nodes=torch.tensor([7777])), r"change.remove_nodes"),
    ],
)
def test_ranks_that_change_differently_are_told_so(other, told):
    changes = [GraphChange(remove_nodes=torch.tensor([ID[3]])), other, GraphChange(remove_nodes=torch.tensor([ID[3]]))]
    models = [sage() for _ in range(3)]

    def on_rank(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        worker = begin("exchange(partitioner=random)", GRAPH, models[transport.rank], communicator)
        before = worker.start_epoch(1)
        with pytest.raises(ConfigError, match=told):
            worker.change(changes[transport.rank])
        assert worker.start_epoch(1) is before

    run_ranks(3, on_rank)


def test_a_rank_that_missed_a_change_is_found_at_the_next():
    change, models = GraphChange(remove_nodes=torch.tensor([ID[3]])), [sage() for _ in range(3)]

    def on_rank(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        worker = begin("exchange(partitioner=random)", GRAPH, models[transport.rank], communicator)
        worker.placement.exchange.version = int(transport.rank == 2)
        with pytest.raises(ConfigError, match=r"change.plan_version is 0 on ranks 0, 1 and 1 on rank 2"):
            worker.change(change)

    run_ranks(3, on_rank)


def test_a_change_of_nothing_leaves_everything():
    models = [sage() for _ in range(3)]

    def on_rank(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        worker = begin("exchange(codec=subset)", GRAPH, models[transport.rank], communicator)
        before = worker.start_epoch(1)
        assert worker.change(GraphChange()) is before
        assert worker.placement.exchange.version == 0

    run_ranks(3, on_rank)


def test_a_rank_may_lose_all_its_nodes_and_get_new_ones():
    models = [sage() for _ in range(3)]
    parts = assign_parts(GRAPH, PARTITIONERS["random"](), 3, seed=0)
    gone, stays = GRAPH.node_ids[parts == 1], int(GRAPH.node_ids[parts == 0][0])
    in_training = {"y": torch.zeros(5, dtype=torch.int64), "train_mask": torch.ones(5, dtype=torch.bool)}
    come = GraphChange(add_nodes=nodes(5, **in_training), add_edges=edges([4000, stays]))

    def on_rank(transport):
        torch.set_num_threads(1)
        model, communicator = models[transport.rank], Communicator(transport, Ledger(transport.rank))
        worker = begin("exchange(codec=error_feedback, partitioner=random)", GRAPH, model, communicator)
        losses = [float(step(worker, 1))]
        assert (worker.change(GraphChange(remove_nodes=gone)).num_owned == 0) == (transport.rank == 1)
        losses.append(float(step(worker, 2)))
        num_owned = worker.change(come).num_owned
        losses.append(float(step(worker, 3)))
        return losses, num_owned

    seen = run_ranks(3, on_rank)
    assert seen[0][0] == seen[1][0] == seen[2][0]
    # The first follows its neighbour, the others go where there is most room.
    assert seen[1][1] == 4

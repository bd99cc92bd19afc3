"""A graph that changes between epochs: training goes on as on a store that was written of the changed graph."""

import pytest
import torch
from tests.equivalence.change_runs import (
    begin,
    changed_graph,
    check_equal,
    check_predicted,
    draw_change,
    run_changing,
    run_rebuilt,
)
from tests.equivalence.coded_runs import sage, step
from tests.equivalence.halo_runs import IN, OUT, Stack, make_graph, relabelled
from torch import nn
from torch_geometric.nn import APPNP, GAT, GCN, GIN, GraphSAGE

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.graph import GraphChange, NewNodes

MODELS = {
    "gcn": lambda: GCN(IN, 12, 3, OUT),
    "sage with dropout and batch norm": lambda: GraphSAGE(IN, 12, 3, OUT, dropout=0.4, norm="batch_norm"),
    "sage max": lambda: GraphSAGE(IN, 12, 2, OUT, aggr="max"),
    "gin": lambda: GIN(IN, 12, 2, OUT),
    "gat": lambda: GAT(IN, 12, 2, OUT, heads=2),
    "appnp": lambda: Stack(nn.Linear(IN, 12), APPNP(K=3, alpha=0.1), nn.Linear(12, OUT)),
}
LINEAR = ["subset", "subset(by='row', scale=True)", "prefix", "topk", "boundary_sample", "low_rank"]
REMEMBERING = ["error_feedback", "cache(codec=quantize(bits=4), age=2)", "stale(codec=error_feedback)"]


def seeded(build):
    def make() -> nn.Module:
        torch.manual_seed(3)
        return build().double()

    return make


@pytest.mark.parametrize("name", MODELS)
def test_training_goes_on_as_on_a_rebuilt_store(name, tmp_path):
    graph, build = make_graph(90), seeded(MODELS[name])
    change = draw_change(graph, 0)
    changed = run_changing("codec=identity", {4: [change]}, graph=graph, build=build)
    rebuilt = run_rebuilt("codec=identity", changed, 4, changed_graph(graph, change), tmp_path / "store", build=build)
    check_equal(changed, rebuilt, 4)
    check_predicted(changed)
    for one, other in zip(changed, rebuilt, strict=True):
        assert relabelled(one.expected_once[4], 4) == one.once[4]
        assert one.counted[5] == other.counted[5]
        # Features of halo rows came with the change, where the first layer asks for them; degrees are told anew.
        saved = num_bytes(other.once[4]) - num_bytes(one.once[4])
        assert saved == (0 if name == "appnp" else 8 * IN * other.num_halo)


@pytest.mark.parametrize(
    "ways", ["edges=cover, reach=0", "edges=cover, reach=1", "edges=source, reach=2", "edges=auto"]
)
def test_edges_and_rows_that_lie_elsewhere_are_placed_again_for_the_changed_graph(ways, tmp_path):
    graph, build = make_graph(90, weighted=True), seeded(MODELS["sage with dropout and batch norm"])
    if "reach=2" in ways:
        build = seeded(lambda: GCN(IN, 12, 3, OUT, dropout=0.4))
    change = draw_change(graph, 0)
    changed = run_changing(ways, {4: [change]}, graph=graph, build=build)
    rebuilt = run_rebuilt(ways, changed, 4, changed_graph(graph, change), tmp_path / "store", build=build)
    check_equal(changed, rebuilt, 4)
    check_predicted(changed)
    for one, other in zip(changed, rebuilt, strict=True):
        assert one.counted[5] == other.counted[5]


def num_bytes(rows) -> int:
    return sum(row.num_bytes for row in rows if row.operation == "all_to_all" and row.direction == "received")


def test_a_change_tells_ids_that_change_and_features_that_are_new():
    graph, models = make_graph(90), [sage() for _ in range(3)]
    changes = [draw_change(graph, 8)]
    changes.append(draw_change(changed_graph(graph, changes[0]), 9, first_id=6000))

    def on_rank(transport):
        torch.set_num_threads(1)
        model, communicator = models[transport.rank], Communicator(transport, Ledger(transport.rank))
        worker = begin("exchange(partitioner=random, edges=destination, reach=0)", graph, model, communicator)
        told = []
        for epoch, change in enumerate(changes, start=1):
            before = set(worker.start_epoch(epoch).halo_ids.tolist())
            step(worker, epoch)
            communicator.ledger.take(epoch)
            after = set(worker.change(change).halo_ids.tolist())
            rows = communicator.ledger.take(epoch)
            assert {row.phase for row in rows} == {"setup"}
            told.append((num_bytes(rows), len(before ^ after), len(after), len(after - before)))
        return told

    first, second = zip(*run_ranks(3, on_rank), strict=True)
    for told, column in ((first, 2), (second, 3)):
        counted, num_changed, num_features = (sum(row[at] for row in told) for at in (0, 1, column))
        assert counted == 8 * num_changed + 8 * IN * num_features
    assert sum(row[3] for row in second) < sum(row[2] for row in second) / 2


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_weighted_edges_change_on_any_number_of_ranks(num_ranks, tmp_path):
    graph = make_graph(90, weighted=True)
    build = seeded(lambda: Weighted(GCN(IN, 12, 2, OUT)))
    change = draw_change(graph, 1)
    changed = run_changing("codec=identity", {4: [change]}, graph=graph, build=build, num_ranks=num_ranks)
    rebuilt = run_rebuilt("codec=identity", changed, 4, changed_graph(graph, change), tmp_path / "store", build=build)
    check_equal(changed, rebuilt, 4)


class Weighted(nn.Module):
    """Takes the weights of the edges by their name."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x, edge_index, edge_weight=None):
        return self.inner(x, edge_index, edge_weight)


def test_changes_follow_each_other(tmp_path):
    """Two at once, one after them that takes back some of the first, and a node that comes back."""
    graph = make_graph(90)
    first = draw_change(graph, 2)
    then = changed_graph(graph, first)
    second = draw_change(then, 3, first_id=6000)
    last = changed_graph(then, second)
    nobody = torch.tensor([False])
    third = GraphChange(
        remove_nodes=torch.tensor([5001, 6001]),
        remove_edges=last.node_ids[last.edge_index[:, -3:]],
        add_nodes=NewNodes(
            first.remove_nodes[:1], torch.ones(1, IN, dtype=torch.float64), torch.tensor([-1]), nobody, nobody, nobody
        ),
        add_edges=torch.stack([first.remove_nodes[:1], last.node_ids[3:4]]),
    )
    changed = run_changing("codec=identity", {2: [first, second], 4: [third]}, graph=graph)
    graph_then = changed_graph(last, third)
    rebuilt = run_rebuilt("codec=identity", changed, 4, graph_then, tmp_path / "store")
    check_equal(changed, rebuilt, 4)
    check_predicted(changed)


def test_the_first_step_after_a_change_is_that_of_one_machine():
    graph = make_graph(90)
    change = draw_change(graph, 4)
    changed = run_changing("codec=identity", {4: [change]}, graph=graph, last=4)
    model = sage()
    model.load_state_dict(changed[0].models[3])
    worker = begin("single", changed_graph(graph, change), model, Communicator(LocalTransport(), Ledger(0)))
    loss = step(worker, 4)
    assert abs(changed[0].losses[4] - float(loss)) <= 1e-10
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(changed[0].gradients[4][name], parameter.grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("codec", LINEAR + REMEMBERING)
def test_with_codecs_it_is_the_same_too_since_memories_begin_anew(codec, tmp_path):
    graph = make_graph(90)
    change = draw_change(graph, 5)
    text = f"codec={codec!r}, schedule=linear(most=8.0, slope=2.0, epochs=10)"
    changed = run_changing(text, {4: [change]}, graph=graph)
    rebuilt = run_rebuilt(text, changed, 4, changed_graph(graph, change), tmp_path / "store")
    check_equal(changed, rebuilt, 4)
    check_predicted(changed)
    for one, other in zip(changed, rebuilt, strict=True):
        # The schedule goes on, so a change costs no epoch more than it would have.
        assert one.counted == {**one.counted, **other.counted}

"""What codecs remember, and what schedules count, when the graph changes."""

import json

import pytest
import torch
from tests.equivalence.change_runs import (
    Seen,
    begin,
    changed_graph,
    check_predicted,
    draw_change,
    run_changing,
    train,
)
from tests.equivalence.coded_runs import predict, sage, step, with_ways
from tests.equivalence.halo_runs import make_graph

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.errors import CheckpointError, CommunicationError, ConfigError
from laconic.graph import GraphChange, NewNodes

REMEMBERING = [
    "error_feedback",
    "error_feedback(codec=topk)",
    "cache",
    "cache(codec=quantize(bits=4), age=2)",
    "stale",
    "stale(codec=error_feedback)",
]


def sent_bytes(runs: list[Seen], epoch: int) -> int:
    rows = [row for seen in runs for row in seen.counted[epoch] if row.phase in ("forward", "backward")]
    return sum(row.num_bytes for row in rows if row.operation == "all_to_all" and row.direction == "sent")


@pytest.mark.parametrize(
    "rest",
    [
        "switch(first=8.0, at=4), edges=destination, reach=0",
        "constant(value=8.0), edges=cover, reach=0",
        "constant(value=4.0), edges=cover, reach=1",
    ],
)
@pytest.mark.parametrize("codec", [*REMEMBERING, "quantize(bits=4)"])
def test_bytes_are_those_predicted_also_in_the_epoch_after_a_change(codec, rest):
    graph = make_graph(90)
    first = draw_change(graph, 0)
    second = draw_change(changed_graph(graph, first), 1, first_id=6000)
    runs = run_changing(f"codec={codec!r}, schedule={rest}", {3: [first, second], 5: [third(graph)]}, graph=graph)
    check_predicted(runs)
    assert runs[0].losses[6] < runs[0].losses[1]
    for name, value in runs[0].model.items():
        assert all(torch.equal(seen.model[name], value) for seen in runs), name


def third(graph):
    """A change after the first two, of nodes that neither of them removes."""
    ids = graph.node_ids[-30:]
    return GraphChange(add_edges=torch.stack([ids, ids.flip(0)]))


def joined(graph, num_new):
    """New nodes, each with an edge from and to three others, and nothing else."""
    ids = torch.arange(7000, 7000 + num_new).repeat(3)
    others = graph.node_ids[torch.arange(3 * num_new) * 7 % graph.num_nodes]
    x = torch.linspace(-1, 1, num_new * graph.num_features, dtype=torch.float64).view(num_new, -1)
    edges = torch.cat([torch.stack([ids, others]), torch.stack([others, ids])], dim=1)
    nobody = torch.zeros(num_new, dtype=torch.bool)
    y = torch.full((num_new,), -1)
    return GraphChange(add_edges=edges, add_nodes=NewNodes(ids[:num_new], x, y, nobody, nobody, nobody))


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.parametrize(
    "codec",
    [
        "identity",
        "subset",
        "error_feedback",
        "error_feedback, edges=cover, reach=0",
        "cache",
        "stale(codec=error_feedback)",
    ],
)
def test_a_run_is_continued_after_the_same_changes(codec, is_pending):
    graph = make_graph(90)
    change = draw_change(graph, 4)
    text = f"codec={codec}, schedule=linear(most=8.0, slope=2.0, epochs=10)"
    whole = run_changing(text, {4: [change]}, graph=graph)
    stop = 3 if is_pending else 4
    models, saved = [[sage() for _ in range(3)] for _ in range(2)], {}

    def on_rank(transport):
        torch.set_num_threads(1)
        communicator = Communicator(transport, Ledger(transport.rank))
        model, seen = models[0][transport.rank], Seen()
        worker = begin(f"exchange({with_ways(text)}, partitioner=random)", graph, model, communicator)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        train(worker, communicator, seen, optimizer, range(1, stop + 1), {4: [change]})
        if is_pending:
            worker.change(change)
        state, tensors = json.dumps(worker.state()), worker.tensors()
        if transport.rank == 0:
            saved.update(state=state, tensors=tensors)
        communicator.barrier()
        again = models[1][transport.rank]
        again.load_state_dict(seen.model)
        worker = begin(f"exchange({with_ways(text)}, partitioner=random)", graph, again, communicator)
        with pytest.raises(CheckpointError, match="a graph that was changed 1 times, and here it was changed 0 times"):
            worker.load_state(json.loads(saved["state"]))
        worker.change(change)
        worker.load_state(json.loads(saved["state"]))
        worker.load_tensors(saved["tensors"])
        held = torch.optim.Adam(again.parameters(), lr=0.01)
        held.load_state_dict(optimizer.state_dict())
        train(worker, communicator, seen, held, range(stop + 1, 7), {})
        return seen

    continued = run_ranks(3, on_rank)
    assert continued[0].losses == whole[0].losses
    assert [seen.counted for seen in continued] == [seen.counted for seen in whole]
    check_predicted(continued)


@pytest.mark.parametrize("codec", ["subset", "error_feedback(codec=topk)"])
def test_a_budget_holds_for_the_whole_run(codec):
    graph = make_graph(90)
    change = draw_change(graph, 5, num_new=12)
    full = run_changing("codec=identity", {4: [change]}, graph=graph)
    budget = sum(sent_bytes(full, epoch) for epoch in full[0].counted) * 6 // 10
    text = f"codec={codec}, schedule=budget(num_bytes={budget}, most=16.0, epochs=6)"
    runs = run_changing(text, {4: [change]}, graph=graph)
    check_predicted(runs)
    total = sum(sent_bytes(runs, epoch) for epoch in runs[0].counted)
    line = max(row.num_bytes for seen in runs for row in seen.counted[6] if row.operation == "all_to_all")
    assert budget - 2 * line < total <= budget


def test_a_change_that_a_budget_does_not_pay_for_is_refused_on_all_ranks():
    graph = make_graph(90)
    change = joined(graph, 60)
    least = 6 * sent_bytes(run_changing("codec=subset, schedule=constant(value=8.0)", {}, graph=graph, last=1), 1)
    text = f"codec=subset, schedule=budget(num_bytes={least + 100}, most=8.0, epochs=6)"
    models = [sage() for _ in range(3)]

    def on_rank(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        spec = f"exchange({with_ways(text)}, partitioner=random)"
        worker = begin(spec, graph, models[transport.rank], communicator)
        step(worker, 1)
        before = worker.start_epoch(2)
        with pytest.raises(ConfigError, match=r"5 epochs cost .* at least .* more than the \d+ that are left of \d+"):
            worker.change(change)
        assert worker.start_epoch(2) is before
        return float(step(worker, 2))

    assert run_ranks(3, on_rank) == [run_changing(text, {}, graph=graph, last=2, lr=0.0)[0].losses[2]] * 3


def test_a_message_of_another_version_of_the_plan_is_refused_on_all_ranks():
    graph = make_graph(90)
    change, models, told = draw_change(graph, 7), [sage() for _ in range(3)], {}

    def on_rank(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        text = f"exchange({with_ways('codec=quantize(bits=4)')}, partitioner=random)"
        worker = begin(text, graph, models[transport.rank], communicator)
        worker.change(change)
        if transport.rank == 1:
            worker.placement.exchange.version = 0
        try:
            step(worker, 9)
        except CommunicationError as error:
            told[transport.rank] = str(error)
            raise

    with pytest.raises(
        CommunicationError, match=r"layer 1, forward, from rank \d to rank \d, in epoch 9.*plan version"
    ):
        run_ranks(3, on_rank)
    assert sorted(told) == [0, 1, 2]


def test_an_adaptive_schedule_goes_on_from_what_it_measured():
    graph, models = make_graph(90), [sage() for _ in range(3)]
    change = draw_change(graph, 8)

    def on_rank(transport):
        torch.set_num_threads(1)
        model, communicator, seen = models[transport.rank], Communicator(transport, Ledger(transport.rank)), Seen()
        settings = "codec=quantize, schedule=adaptive(theta=0.001, most=16.0, epochs=20)"
        text = f"exchange({with_ways(settings)}, partitioner=random)"
        worker = begin(text, graph, model, communicator)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        train(worker, communicator, seen, optimizer, range(1, 7), {4: [change]})
        # Known once the errors of the epochs before are.
        seen.predicted = {epoch: predict(worker, epoch) for epoch in (4, 5, 6)}
        return seen, [max(line.rate for line in one.lines.values()) for one in worker.coder.measured]

    for seen, rates in run_ranks(3, on_rank):
        assert rates[0] == 16.0
        # It goes on from where it was, on all lines but new ones.
        assert 16.0 > rates[2] >= rates[3] >= rates[4]
        assert {epoch: seen.counted[epoch] for epoch in (4, 5, 6)} == seen.predicted

"""What `gradient_only` sends: predicted to the byte for every epoch; in training steps gradients and nothing else."""

import pytest
import torch
from tests.equivalence.halo_runs import IN, OUT, Stack, make_graph
from tests.equivalence.isolated_runs import OwnConv, models_of, run_isolated
from torch import nn
from torch_geometric.nn import GAT, GCN, GraphSAGE, SGConv

from laconic.comm.frames import HEADER_BYTES

EPOCHS = 7
MODELS = {
    "GCN": lambda: GCN(IN, 8, 3, OUT, dropout=0.3),
    "SAGE batch norm": lambda: GraphSAGE(IN, 8, 2, OUT, norm="batch_norm"),
    "GAT": lambda: GAT(IN, 8, 2, OUT, heads=2),
    "SGC": lambda: Stack(SGConv(IN, 8, K=2), nn.ReLU(), SGConv(8, OUT, K=2)),
    "user's own": lambda: Stack(OwnConv(IN, 8), nn.ReLU(), OwnConv(8, OUT)),
}
# {} is the number of variable chunks.
SETTINGS = {
    "remembered": "repartition_every=3",
    "remembered, not gradually": "repartition_every=3, gradual=False",
    "remembered, as they are": "repartition_every=3, codec=identity",
    "remembered, by a rate": "repartition_every=3, codec=subset",
    "remembered, many chunks": "repartition_every=2, chunks=7",
    "remembered, ranks alike": "repartition_every=3, combination=mean",
    "remembered always anew": "repartition_every=1",
    "one chunk": "remember=False, repartition_every=3",
    "storage": "remember=False, repartition_every=2, variable=1, supply=storage, correction=node, hops=2",
    "peers": "remember=False, repartition_every=2, variable=1, supply=peers, correction=batch, shrinkage=auto",
    "peers, every epoch": "remember=False, repartition_every=1, variable=1, supply=peers, correction=node",
    "peers, random": "remember=False, repartition_every=2, variable=2, chunks=7, supply=peers, schedule=random",
    "peers, affinity": "remember=False, repartition_every=2, variable=2, chunks=7, supply=peers, schedule=affinity",
    "peers, fixed": "remember=False, repartition_every=2, variable=1, supply=peers, schedule=fixed",
    "peers, grouped anew": "remember=False, repartition_every=1, variable=2, chunks=7, supply=peers, rechunk_every=1",
    "peers, global": "remember=False, repartition_every=2, variable=1, supply=peers, normalise=whole, combination=ht",
}


def check_foretold(ranks):
    for number, rank in enumerate(ranks):
        for epoch, (counted, predicted) in enumerate(zip(rank.counted, rank.predicted, strict=True), start=1):
            assert [row for row in counted if row.phase != "setup"] == [
                row for row in predicted if row.epoch == epoch
            ], f"rank {number}, epoch {epoch}"
        once = [row for row in rank.predicted[0] if row.epoch == 0]
        counted = [row for row in rank.counted[0] if row.phase == "setup"]
        assert [(row.operation, row.direction, row.num_bytes) for row in counted] == [
            (row.operation, row.direction, row.num_bytes) for row in once
        ]
    for phase in ("setup", "gradients", "evaluation", "repartition"):
        sent, received = (
            sum(
                row.num_bytes
                for rank in ranks
                for rows in rank.counted
                for row in rows
                if (row.phase, row.direction) == (phase, direction)
            )
            for direction in ("sent", "received")
        )
        assert sent == received, phase


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_epoch_costs_what_was_predicted(name, num_ranks):
    settings = f"partitioner=random, {SETTINGS[name]}"
    check_foretold(run_isolated(MODELS["SAGE batch norm"], make_graph(), num_ranks, settings, EPOCHS, foretold=True))


@pytest.mark.parametrize("name", ["remembered", "peers"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_costs_what_was_predicted(model, name):
    ranks = run_isolated(MODELS[model], make_graph(), 3, f"partitioner=random, {SETTINGS[name]}", EPOCHS, foretold=True)
    check_foretold(ranks)


def test_edge_weights_are_handed_over_too():
    graph = make_graph(weighted=True)
    settings = f"partitioner=random, {SETTINGS['peers, every epoch']}"
    weighted = run_isolated(MODELS["GCN"], graph, 3, settings, 3, foretold=True)
    check_foretold(weighted)
    plain = run_isolated(MODELS["GCN"], make_graph(), 3, settings, 3)
    assert bytes_in(weighted, "repartition") > bytes_in(plain, "repartition")


def bytes_in(ranks, phase):
    return sum(row.num_bytes for rank in ranks for rows in rank.counted for row in rows if row.phase == phase)


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("name", SETTINGS)
def test_training_steps_exchange_gradients_and_nothing_else(name, num_ranks):
    """For all ranks: 2 (P - 1) times the parameters' bytes, a flag per parameter, a fingerprint of the weights, and the
    two sums of the loss; of any graph."""
    model = models_of(MODELS["SAGE batch norm"], 1)[0]
    parameters = list(model.parameters())
    num_bytes = sum(parameter.numel() * 8 for parameter in parameters) + len(parameters) + 16 + 16
    for num_nodes in (30, 90):
        ranks = run_isolated(
            MODELS["SAGE batch norm"], make_graph(num_nodes), num_ranks, f"partitioner=random, {SETTINGS[name]}", 3
        )
        for epoch in range(3):
            rows = [row for rank in ranks for row in rank.in_step[epoch]]
            assert {(row.phase, row.operation) for row in rows} == {("gradients", "all_reduce")}
            for direction in ("sent", "received"):
                total = sum(row.num_bytes for row in rows if row.direction == direction)
                assert total == 2 * (num_ranks - 1) * num_bytes


def test_what_a_refresh_sends_goes_through_the_codec():
    def of_layers(codec):
        ranks = run_isolated(MODELS["GCN"], make_graph(), 3, f"partitioner=random, codec={codec}", 1)
        rows = [row for rank in ranks for row in rank.counted[0] if row.phase == "repartition"]
        return [sum(row.num_bytes for row in rows if row.layer == layer) for layer in (0, 1, 2)]

    plain, coded = of_layers("identity"), of_layers("quantize(bits=4, stochastic=False)")
    # Features stay exact. Rows of 8 float64 are 64 bytes; coded 8, and a header for each message.
    assert coded[0] == plain[0]
    num_rows, num_messages = plain[1] // 64, 2 * 3 * 2
    assert coded[1] == coded[2] == 8 * num_rows + HEADER_BYTES * num_messages


def test_input_features_of_remembered_neighbours_come_once():
    settings = "keep=rows, partitioner=random, repartition_every=2, gradual=False"
    ranks = run_isolated(MODELS["GCN"], make_graph(), 3, settings, 5)
    for rank in ranks:
        layers = [{row.layer for row in rows if row.phase == "repartition"} for rows in rank.counted]
        assert layers == [{0, 1, 2}, set(), {1, 2}, set(), {1, 2}]
        assert torch.isfinite(torch.tensor(rank.losses)).all()


@pytest.mark.parametrize("settings", ["keep=sums", "keep=rows", "remember=False"])
def test_features_that_a_refresh_brought_do_not_travel_again_for_an_evaluation(settings):
    ranks = run_isolated(lambda: GraphSAGE(IN, 8, 2, OUT), make_graph(), 3, f"partitioner=random, {settings}", 1)
    phases = {row.phase for rank in ranks for row in rank.counted[0] if row.operation == "all_to_all"}
    assert phases - {"evaluation"} == {"setup" if settings == "remember=False" else "repartition"}

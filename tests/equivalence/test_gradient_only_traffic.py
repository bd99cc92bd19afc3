"""What `gradient_only` and `grappa` send: predicted to the byte for every epoch; in training steps gradients only."""

import numpy as np
import pytest
import torch
from tests.equivalence.halo_runs import IN, OUT, Stack, make_graph
from tests.equivalence.isolated_runs import OwnConv, models_of, run_isolated
from torch import nn
from torch_geometric.nn import GAT, GCN, GraphSAGE, SGConv

from laconic.comm.frames import HEADER_BYTES
from laconic.store import open_store, write_store

EPOCHS = 7
MODELS = {
    "GCN": lambda: GCN(IN, 8, 3, OUT, dropout=0.3),
    "SAGE batch norm": lambda: GraphSAGE(IN, 8, 2, OUT, norm="batch_norm"),
    "GAT": lambda: GAT(IN, 8, 2, OUT, heads=2),
    "SGC": lambda: Stack(SGConv(IN, 8, K=2), nn.ReLU(), SGConv(8, OUT, K=2)),
    "user's own": lambda: Stack(OwnConv(IN, 8), nn.ReLU(), OwnConv(8, OUT)),
}
# Settings of the strategy that begins the name.
SETTINGS = {
    "gradient_only": "refresh_every=3",
    "gradient_only, not gradually": "refresh_every=3, gradual=False",
    "gradient_only, as they are": "refresh_every=3, codec=identity",
    "gradient_only, by a rate": "refresh_every=3, codec=subset",
    "gradient_only, always anew": "refresh_every=1",
    "grappa, one chunk": "repartition_every=3",
    "grappa, storage": "repartition_every=2, variable=1, supply=storage, correction=node, hops=2",
    "grappa, peers": "repartition_every=2, variable=1, supply=peers, correction=batch, shrinkage=auto",
    "grappa, peers, every epoch": "repartition_every=1, variable=1, supply=peers, correction=node",
    "grappa, peers, random": "repartition_every=2, variable=2, chunks=7, supply=peers, schedule=random",
    "grappa, peers, affinity": "repartition_every=2, variable=2, chunks=7, supply=peers, schedule=affinity",
    "grappa, peers, fixed": "repartition_every=2, variable=1, supply=peers, schedule=fixed, rechunk_every=1",
    "grappa, peers, grouped anew": "repartition_every=1, variable=2, chunks=7, supply=peers, rechunk_every=1",
    "grappa, peers, one at a time": "repartition_every=1, variable=1, chunks=5, supply=peers, rechunk_every=1",
    "grappa, peers, degree": "repartition_every=2, variable=1, supply=peers, correction=degree, combination=ht",
    "grappa, ranks alike": "repartition_every=3, combination=mean",
}


def run(name, model, graph, num_ranks, epochs, *, foretold=False):
    settings = f"partitioner=random, {SETTINGS[name]}"
    return run_isolated(model, graph, num_ranks, settings, epochs, strategy=name.split(",")[0], foretold=foretold)


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
    check_foretold(run(name, MODELS["SAGE batch norm"], make_graph(), num_ranks, EPOCHS, foretold=True))


def test_with_more_chunks_than_ranks_every_epoch_costs_what_was_predicted(tmp_path):
    write_store(make_graph(), np.arange(60) % 7, tmp_path / "store")
    store = open_store(tmp_path / "store")
    check_foretold(run_isolated(MODELS["SAGE batch norm"], store, 3, "refresh_every=2", EPOCHS, foretold=True))


@pytest.mark.parametrize("name", ["gradient_only", "grappa, peers"])
@pytest.mark.parametrize("model", MODELS)
def test_every_model_costs_what_was_predicted(model, name):
    check_foretold(run(name, MODELS[model], make_graph(), 3, EPOCHS, foretold=True))


def test_edge_weights_are_handed_over_too():
    name = "grappa, peers, every epoch"
    weighted = run(name, MODELS["GCN"], make_graph(weighted=True), 3, 3, foretold=True)
    check_foretold(weighted)
    plain = run(name, MODELS["GCN"], make_graph(), 3, 3)
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
        ranks = run(name, MODELS["SAGE batch norm"], make_graph(num_nodes), num_ranks, 3)
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
    assert coded[1] == 8 * num_rows + HEADER_BYTES * num_messages
    assert coded[2] == plain[2] == 0


def test_input_features_of_historical_neighbours_come_once():
    settings = "keep=rows, partitioner=random, refresh_every=2, gradual=False"
    ranks = run_isolated(MODELS["GCN"], make_graph(), 3, settings, 5)
    for rank in ranks:
        layers = [{row.layer for row in rows if row.phase == "repartition"} for rows in rank.counted]
        assert layers == [{0, 1, 2}, set(), {1, 2}, set(), {1, 2}]
        assert torch.isfinite(torch.tensor(rank.losses)).all()


def test_sums_of_the_last_layer_whose_halo_rows_nobody_reads_never_come():
    settings = "keep=sums, reach=1, partitioner=random, refresh_every=2"
    ranks = run_isolated(lambda: GCN(IN, 8, 3, OUT), make_graph(), 3, settings, 5)
    for rank in ranks:
        layers = [{row.layer for row in rows if row.phase == "repartition"} - {-1} for rows in rank.counted]
        assert layers == [{0, 1}, set(), {1}, set(), {1}]


@pytest.mark.parametrize(
    ("strategy", "settings"), [("gradient_only", "keep=sums"), ("gradient_only", "keep=rows"), ("grappa", "hops=1")]
)
def test_features_that_a_refresh_brought_do_not_travel_again_for_an_evaluation(strategy, settings):
    settings = f"partitioner=random, {settings}"
    ranks = run_isolated(lambda: GraphSAGE(IN, 8, 2, OUT), make_graph(), 3, settings, 1, strategy=strategy)
    phases = {row.phase for rank in ranks for row in rank.counted[0] if row.operation == "all_to_all"}
    assert phases - {"evaluation"} == {"setup" if strategy == "grappa" else "repartition"}

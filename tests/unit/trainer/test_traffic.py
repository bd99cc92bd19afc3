"""What a run moved, by what it was for, beside what exact exchange would have moved. Ranks are threads here."""

import copy

import pytest
import torch
from tests.unit.trainer.test_ranks import HALO, config_at
from torch_geometric.nn import GAT, GCN, GraphSAGE

from laconic.datasets import load
from laconic.models import build_model, parse_model
from laconic.trainer import resume, start
from laconic.trainer.config import TrainingConfig

CODED = "exchange(partitioner=random, edges=destination, reach=0, codec=quantize(bits=2))"
MODELS = {
    "gcn": lambda: GCN(8, 16, 2, 4, dropout=0.5),
    "sage with batch norm": lambda: GraphSAGE(8, 16, 3, 4, norm="batch_norm"),
    "gat": lambda: GAT(8, 16, 2, 4, heads=2),
}


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


@pytest.fixture
def train(on_ranks):
    """Trains on so many ranks, and returns what rank 0 tells of the traffic."""

    def train(num_ranks, config, graph, model):
        def run(communicator):
            return start(config, graph=graph, model=copy.deepcopy(model), communicator=communicator)

        return on_ranks(num_ranks, run)[0]

    return train


def model_of(kind):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return MODELS[kind]().double()


@pytest.mark.parametrize(
    ("kind", "num_ranks", "metric"),
    [("gcn", 2, "accuracy"), ("gcn", 3, "roc_auc"), ("sage with batch norm", 3, "accuracy"), ("gat", 2, "accuracy")],
)
def test_of_exact_exchange_the_prediction_is_what_was_counted(tmp_path, graph, train, kind, num_ranks, metric):
    config = config_at(tmp_path / "run", evaluate_every=4, metric=metric)
    traffic = train(num_ranks, config, graph, model_of(kind)).traffic
    counted = {purpose: traffic.received[purpose] for purpose in ("rows", "gradients", "evaluation")}
    assert counted == traffic.exact
    assert all(counted.values())
    assert "refresh" not in traffic.received


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("strategy", [CODED, "gradient_only(partitioner=random)"])
def test_beside_another_strategy_stands_what_the_exact_run_on_the_same_parts_counts(
    tmp_path, graph, train, kind, strategy
):
    exact = train(3, config_at(tmp_path / "exact", strategy=HALO), graph, model_of(kind)).traffic
    other = train(3, config_at(tmp_path / "other", strategy=strategy), graph, model_of(kind)).traffic
    assert other.exact == {purpose: exact.received[purpose] for purpose in ("rows", "gradients", "evaluation")}
    assert other.received.get("rows", 0) < exact.received["rows"]


@pytest.mark.parametrize("codec", ["identity", "quantize(bits=2)"])
def test_beside_a_grid_stands_what_the_same_grid_moves_without_a_codec(tmp_path, graph, train, codec):
    config = config_at(tmp_path / "run", strategy=f"full_graph(grid='2d', codec={codec})")
    traffic = train(4, config, graph, model_of("gcn")).traffic
    if codec == "identity":
        assert traffic.exact == {purpose: traffic.received[purpose] for purpose in ("rows", "gradients", "evaluation")}
    else:
        assert traffic.received["rows"] < traffic.exact["rows"] / 2


def test_with_mini_batches_there_is_nothing_to_compare_with(tmp_path, graph, train):
    strategy = "gradient_only(partitioner=random, keep=rows)"
    config = config_at(tmp_path / "run", strategy=strategy, batch_size=5, fanouts=(3, 3))
    traffic = train(2, config, graph, model_of("gcn")).traffic
    assert traffic.exact is None
    assert traffic.received["gradients"] > 0


def test_one_rank_moves_nothing(tmp_path, graph):
    summary = start(config_at(tmp_path / "run", strategy="single"), graph=graph, model=model_of("gcn"))
    assert (summary.bytes_per_epoch, summary.traffic.received) == (0, {})


def test_a_resumed_run_counts_its_epochs_from_the_first(tmp_path, graph, train, on_ranks):
    model = model_of("gcn")
    whole = train(2, config_at(tmp_path / "whole", epochs=8), graph, model)
    train(2, config_at(tmp_path / "cut", epochs=4), graph, model)

    def go_on(communicator):
        layers = [{"training": {"epochs": 8}}]
        return resume(tmp_path / "cut", layers, graph=graph, model=copy.deepcopy(model), communicator=communicator)

    resumed = on_ranks(2, go_on)[0]
    assert resumed.traffic.exact == whole.traffic.exact
    assert resumed.bytes_per_epoch == whole.bytes_per_epoch > 0


def test_epochs_on_one_rank_are_not_counted_by_a_run_that_goes_on_on_two(tmp_path, graph, on_ranks):
    model = model_of("gcn")
    config = config_at(tmp_path / "run", epochs=4, strategy="exchange(edges=destination, reach=0)")
    start(config, graph=graph, model=copy.deepcopy(model))

    def go_on(communicator):
        layers = [{"training": {"epochs": 6}}]
        return resume(tmp_path / "run", layers, graph=graph, model=copy.deepcopy(model), communicator=communicator)

    traffic = on_ranks(2, go_on)[0].traffic
    assert traffic.num_epochs == 2
    assert traffic.exact == {purpose: traffic.received[purpose] for purpose in ("rows", "gradients", "evaluation")}


@pytest.mark.parametrize("spec", ["gcn", "sage(layers=3)", "gat(heads=2, hidden=8)"])
def test_by_default_evaluation_is_less_than_a_tenth_of_an_exact_run(tmp_path, train, spec):
    """On a multiple of the shortest interval: a short run that ends between two scores may have a larger share."""
    graph = load("sbm(nodes=200, degree=8.0)")
    model = build_model(parse_model(spec), num_features=graph.num_features, num_classes=graph.num_classes, seed=0)
    config = config_at(tmp_path / "run", epochs=20, evaluate_every=TrainingConfig().evaluate_every)
    received = train(2, config, graph, model).traffic.received
    work = sum(received[purpose] for purpose in ("rows", "gradients", "evaluation"))
    assert 0 < received["evaluation"] < work / 10

"""Runs whose codecs remember: what they remember is in the checkpoint, as tensors, and goes on bit by bit."""

import copy
import json

import pytest
import torch
from torch_geometric.nn import GraphSAGE

from laconic.records import EpochRecord, read_records
from laconic.trainer import Config, DataConfig, RunConfig, TrainingConfig, resume, start
from laconic.trainer.checkpoint import Checkpoints


@pytest.fixture
def graph(make_graph):
    return make_graph(dtype=torch.float64)


@pytest.fixture
def model():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return GraphSAGE(8, 16, 3, 4, dropout=0.5).double()


def config_at(folder, strategy, epochs):
    return Config(
        data=DataConfig(source="sbm"),
        training=TrainingConfig(strategy=strategy, epochs=epochs, lr=0.05, evaluate_every=1),
        run=RunConfig(folder=str(folder), checkpoint_every=4, tensorboard=False, threads=1),
    )


def losses_in(folder):
    return [row.loss for row in read_records(folder / "metrics.jsonl", EpochRecord)]


@pytest.mark.parametrize(
    "text",
    [
        "codec=error_feedback",
        "codec=cache",
        "codec=stale(codec=error_feedback)",
        "codec=quantize, schedule=adaptive(most=16.0, epochs=8, tail=0.0, calibrate=3)",
    ],
)
@pytest.mark.parametrize(("kind", "num_ranks"), [("exchange(reach=0, ", 3), ('full_graph(grid="2d", ', 4)])
def test_a_run_that_goes_on_from_a_checkpoint_equals_one_that_never_stopped(
    tmp_path, graph, model, on_ranks, text, kind, num_ranks
):
    strategy = f"{kind}{text}, partitioner=random)"
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def begin(communicator, folder, epochs):
        config = config_at(folder, strategy, epochs)
        return start(config, graph=graph, model=copy.deepcopy(model), communicator=communicator)

    on_ranks(num_ranks, lambda communicator: begin(communicator, whole, 8))
    on_ranks(num_ranks, lambda communicator: begin(communicator, cut, 4))
    longer = [{"training": {"epochs": 8}}]
    on_ranks(
        num_ranks,
        lambda communicator: resume(cut, longer, graph=graph, model=copy.deepcopy(model), communicator=communicator),
    )
    assert losses_in(cut) == losses_in(whole)
    ends = [Checkpoints(folder / "checkpoints").load("last") for folder in (whole, cut)]
    held = [{name: value for name, value in end.training.items() if name.startswith("strategy.")} for end in ends]
    assert held[0].keys() == held[1].keys()
    for name, value in held[0].items():
        # Lines that an epoch did not have are NaN.
        torch.testing.assert_close(held[1][name], value, rtol=0, atol=0, equal_nan=True)
    for name, value in ends[0].model.items():
        assert torch.equal(ends[1].model[name], value), name
    # Numbers are in tensors, not in the notes.
    notes = dict(ends[0].notes["strategy"])
    assert len(notes.pop("num_vectors")) == 2
    assert notes == {"num_ranks": num_ranks, "next_epoch": 9}
    assert len(json.dumps(ends[0].notes)) < 20_000
    parts = {part for name in held[0] for part in name.split(".")}
    assert ("memory" in parts) == ("feedback" in text or "cache" in text)
    assert ("under_way" in parts) == ("stale" in text)
    assert ("measured" in parts) == ("adaptive" in text)


def test_on_another_number_of_ranks_a_run_goes_on_with_empty_memories(tmp_path, graph, model, on_ranks):
    strategy = "exchange(codec=error_feedback, reach=0, partitioner=random)"
    config = config_at(tmp_path / "run", strategy, 4)
    on_ranks(3, lambda one: start(config, graph=graph, model=copy.deepcopy(model), communicator=one))
    longer = [{"training": {"epochs": 6}}]
    on_ranks(
        2,
        lambda one: resume(tmp_path / "run", longer, graph=graph, model=copy.deepcopy(model), communicator=one),
    )
    assert len(losses_in(tmp_path / "run")) == 6

"""Training through codecs: bytes as predicted, exact where it says so, and the gradient of what was computed."""

import dataclasses

import pytest
import torch
from tests.equivalence.coded_runs import Run, check_predicted, run_coded, sage, step, total
from tests.equivalence.halo_runs import IN, OUT, Stack, make_graph
from tests.placing import start
from torch import nn
from torch_geometric.nn import APPNP, GAT, GraphSAGE, SAGEConv

from laconic.attach.forward import run_model
from laconic.comm.transport import run_ranks
from laconic.errors import ConfigError
from laconic.strategies import parse_strategy

FIXED = [
    "cast",
    "subset",
    "subset(by='row', scale=True)",
    "prefix",
    "topk",
    "quantize",
    "quantize(bits=2)",
    "boundary_sample",
    "low_rank",
    "error_feedback",
    "error_feedback(codec=topk)",
    "cache",
    "cache(codec=quantize(bits=4), age=2)",
    "stale",
    "stale(codec=quantize(bits=4))",
]
SCHEDULES = [
    "constant(value=8.0)",
    "linear(most=16.0, epochs=6)",
    "exponential(most=16.0, epochs=6)",
    "step(rates=(1.0, 8.0, 2.0), at=(2, 4))",
    "switch(first=8.0, at=3)",
    "adaptive(most=16.0, epochs=6, tail=0.2)",
]


def check_same_weights(runs: list[Run]) -> None:
    for name, value in runs[0].model.items():
        assert all(torch.equal(run.model[name], value) for run in runs), name
        assert torch.isfinite(value).all()


@pytest.mark.parametrize("codec", FIXED)
def test_bytes_are_those_predicted_and_ranks_end_with_the_same_weights(codec):
    runs = run_coded(f"codec={codec!r}, schedule=constant(value=4.0)", 3)
    check_predicted(runs)
    check_same_weights(runs)
    full = total(run_coded("codec=identity", 1))
    assert total(runs, epoch=1) < full or codec == "stale"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("codec", ["subset", "error_feedback(codec=topk)"])
def test_bytes_follow_every_schedule(codec, schedule):
    runs = run_coded(f"codec={codec}, schedule={schedule}", 6)
    check_predicted(runs)
    check_same_weights(runs)


def test_bytes_of_a_codec_without_a_fixed_size_stay_below_what_was_predicted():
    runs = run_coded("codec=relu_bitmap", 3)
    for run in runs:
        for epoch, counted in run.counted.items():
            predicted = run.predicted[epoch]
            assert [dataclasses.replace(row, num_bytes=0) for row in counted] == [
                dataclasses.replace(row, num_bytes=0) for row in predicted
            ]
            for one, other in zip(counted, predicted, strict=True):
                # Rows after a ReLU have zeros, gradients need not.
                is_bounded = one.operation == "all_to_all" and one.phase in ("forward", "backward")
                assert one.num_bytes <= other.num_bytes if is_bounded else one == other
                if is_bounded and one.phase == "forward":
                    assert one.num_bytes < 0.8 * other.num_bytes or one.layer == 2
    check_same_weights(runs)


@pytest.mark.parametrize("codec", ["subset", "quantize(bits=2)", "error_feedback", "cache", "stale"])
def test_rate_1_is_the_exchange_without_a_codec_bit_by_bit(codec):
    exact = run_coded("codec=identity", 3)
    bypassed = run_coded(f"codec={codec}, schedule=constant(value=1.0)", 3)
    for one, other in zip(exact, bypassed, strict=True):
        assert one.losses == other.losses
        assert one.counted == other.counted
        for name, value in one.model.items():
            assert torch.equal(value, other.model[name])


def test_a_codec_that_loses_nothing_trains_as_without_one():
    exact, coded = run_coded("codec=identity", 5), run_coded("codec=relu_bitmap", 5)
    assert coded[0].losses == exact[0].losses
    for name, value in exact[0].model.items():
        assert torch.equal(coded[0].model[name], value)


def test_evaluation_is_exact():
    runs = run_coded("codec=quantize(bits=1)", 3)
    model, graph = sage(), make_graph(90)
    model.load_state_dict(runs[0].model)
    worker = start("single", graph, model)
    with torch.no_grad():
        expected = run_model(model.eval(), worker.shard)
    for run in runs:
        for node, logits in run.predictions.items():
            row = worker.shard.node_ids.tolist().index(node)
            torch.testing.assert_close(logits, expected[row], rtol=0, atol=1e-10)


MODELS = {
    "sage": sage,
    "gat": lambda: GAT(IN, 16, 2, OUT, heads=2).double(),
    "appnp": lambda: Stack(nn.Linear(IN, 16), APPNP(K=3, alpha=0.1), nn.Linear(16, OUT)).double(),
    "batch norm": lambda: GraphSAGE(IN, 16, 3, OUT, norm="batch_norm").double(),
}


@pytest.mark.parametrize(
    "codec", ["identity", "subset", "subset(by='row', scale=True)", "prefix", "topk", "boundary_sample"]
)
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_the_network_with_the_codec_in_it(name, codec):
    """Central differences of the loss, the key held fixed; of topk, as long as its places stay."""
    graph = make_graph(90)
    torch.manual_seed(1)
    models = [MODELS[name]() for _ in range(3)]

    def on_rank(transport):
        model = models[transport.rank]
        worker = start(
            f"exchange(codec={codec!r}, schedule=constant(value=3.0), partitioner=random)",
            graph,
            model,
            transport,
            seed=5,
        )
        step(worker, 2)
        gradients = [(p, p.grad.clone()) for p in model.parameters() if p.grad is not None]
        found = []
        for parameter, grad in gradients:
            direction = torch.linspace(-1, 1, parameter.numel(), dtype=torch.float64).view_as(parameter)
            losses = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter += sign * 1e-6 * direction
                losses.append(step(worker, 2))
                with torch.no_grad():
                    parameter -= sign * 1e-6 * direction
            found.append((float((grad * direction).sum()), float(losses[0] - losses[1]) / 2e-6))
        return found

    for reported, differences in run_ranks(3, on_rank)[0]:
        assert reported == pytest.approx(differences, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("stochastic", [True, False])
def test_the_gradient_through_quantize_is_near_the_exact_one(stochastic):
    exact = run_coded("codec=identity", 1)[0].gradients
    coded = run_coded(f"codec=quantize(bits=8, stochastic={stochastic})", 1)[0].gradients
    for name, gradient in exact.items():
        assert float((coded[name] - gradient).norm()) <= 0.02 * float(gradient.norm()) + 1e-12, name


def test_the_mean_gradient_through_stochastic_messages_back_is_the_exact_one():
    """A network that is linear above and below its exchange: over keys, its gradient is right in the mean."""
    graph = make_graph(90)
    torch.manual_seed(0)
    models = [Stack(nn.Linear(IN, 24), SAGEConv(24, 30)).double() for _ in range(3)]

    def on_rank(transport, codec):
        model = models[transport.rank]
        worker = start(f"exchange(codec={codec}, partitioner=random, reach=0)", graph, model, transport, seed=5)
        grads = []
        for epoch in range(1, 2 if codec == "identity" else 400):
            model.train()
            shard = worker.start_epoch(epoch)
            loss = worker.share_loss(run_model(model, shard)[:, 0].sum())
            model.zero_grad()
            loss.backward()
            grads.append(model.layers[0].weight.grad.clone())
        worker.attachment.detach()
        return torch.stack(grads)

    exact = run_ranks(3, lambda transport: on_rank(transport, "identity"))[0][0]
    draws = run_ranks(3, lambda transport: on_rank(transport, "quantize(bits=2)"))[0]
    z = (draws.mean(dim=0) - exact) / (draws.std(dim=0) / len(draws) ** 0.5).clamp(min=1e-12)
    assert draws.std(dim=0).max() > 1e-3
    assert z.abs().max() < 4.5


@pytest.mark.parametrize("codec", ["error_feedback", "cache", "stale(codec=error_feedback)", "subset", "quantize"])
@pytest.mark.parametrize("schedule", ["linear(most=16.0, epochs=8)", "adaptive(most=8.0, epochs=8, tail=0.0)"])
def test_a_run_that_is_continued_equals_one_that_never_stopped(codec, schedule):
    if "adaptive" in schedule and codec.startswith(("cache", "stale")):
        with pytest.raises(ConfigError, match="they do not know what receivers have"):
            parse_strategy(f"exchange(codec={codec}, schedule={schedule})")
        return
    text = f"codec={codec}, schedule={schedule}"
    whole, continued = run_coded(text, 6), run_coded(text, 6, resume_at=3)
    assert continued[0].losses == whole[0].losses
    assert continued[2].counted[6] == whole[2].counted[6]
    for name, value in whole[0].model.items():
        assert torch.equal(continued[0].model[name], value), name


def test_the_last_layer_may_go_as_it_is():
    raw = run_coded("codec=subset, schedule=constant(value=8.0), raw_last=True", 1)
    exact = run_coded("codec=identity", 1)

    def of_layer(runs: list[Run], layer: int) -> list[int]:
        rows = [row for run in runs for row in run.counted[1] if row.operation == "all_to_all" and row.layer == layer]
        return [row.num_bytes for row in rows if row.phase in ("forward", "backward")]

    check_predicted(raw)
    assert of_layer(raw, 2) == of_layer(exact, 2)
    assert sum(of_layer(raw, 1)) < sum(of_layer(exact, 1)) / 4


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_budget_is_met_within_one_line(share):
    epochs = 6
    full = total(run_coded("codec=identity", epochs))
    budget = int(share * full)
    runs = run_coded(f"codec=subset, schedule=budget(num_bytes={budget}, most=16.0, epochs={epochs})", epochs)
    check_predicted(runs)
    line = max(row.num_bytes for run in runs for row in run.counted[epochs] if row.operation == "all_to_all")
    assert budget - 2 * line < total(runs) <= budget


def test_the_rates_of_an_adaptive_run_answer_to_its_errors():
    tight = run_coded("codec=quantize, schedule=adaptive(theta=0.01, most=16.0, epochs=20, tail=0.0)", 8)
    loose = run_coded("codec=quantize, schedule=adaptive(theta=5.0, most=16.0, epochs=20, tail=0.0)", 8)
    assert total(tight, epoch=8) > 2 * total(tight, epoch=1)
    assert total(loose, epoch=8) == total(loose, epoch=1)
    check_predicted(tight)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("exchange(codec=subst)", r"Unknown codec 'subst'.*Did you mean 'subset'"),
        ("exchange(codec=subset, schedule=constnat)", r"Unknown schedule 'constnat'.*Did you mean 'constant'"),
        ("exchange(codec=quantize(bits=5))", "bits should be 1, 2, 4 or 8"),
    ],
)
def test_unknown_members_are_refused_at_once(text, told):
    with pytest.raises(ConfigError, match=told):
        parse_strategy(text)

"""Ranks that train apart for a few steps: what they average, send and remember."""

import copy

import pytest
import torch
from torch import nn

from laconic.comm import Communicator, Ledger, LocalTransport
from laconic.errors import ConfigError
from laconic.gradients.local_steps import LocalSteps

# Rows of each of three ranks; the last one has none.
NUM_ROWS = [5, 2, 0]
TOTAL = sum(NUM_ROWS)
NUM_WORDS = 4 * 3 + 3


def build() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 3).double()


MODEL = build()


def rows(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(NUM_ROWS[rank], 4, generator=generator, dtype=torch.float64)


def own_loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    """The rank's share of the mean over the rows of all ranks."""
    return model(rows(rank, step)).square().sum() / TOTAL


def optimizer_of(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01)
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if kind == "momentum" else 0.0)


def start(communicator: Communicator, every: int) -> tuple[nn.Module, LocalSteps]:
    model = copy.deepcopy(MODEL)
    share = NUM_ROWS[communicator.rank] / TOTAL
    return model, LocalSteps(model, communicator, every=every, share=share)


def take_step(model, local, optimizer, rank, step) -> None:
    optimizer.zero_grad()
    local.share(own_loss(model, rank, step)).backward()
    optimizer.step()
    local.end_step()


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def test_one_step_of_sgd_and_an_average_is_the_step_of_the_global_mean(on_ranks):
    def run(communicator):
        model, local = start(communicator, every=5)
        take_step(model, local, optimizer_of(model, "sgd"), communicator.rank, 0)
        local.synchronise()
        return weights(model)

    single = copy.deepcopy(MODEL)
    sum(own_loss(single, rank, 0) for rank in range(3)).backward()
    optimizer_of(single, "sgd").step()
    results = on_ranks(3, run)
    for result in results:
        assert equal(result, results[0])
        for mine, expected in zip(result, weights(single), strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_every_few_steps_parameters_are_averaged_by_rows(kind, on_ranks):
    def run(communicator):
        model, local = start(communicator, every=3)
        optimizer = optimizer_of(model, kind)
        seen = []
        for step in range(6):
            take_step(model, local, optimizer, communicator.rank, step)
            seen.append(weights(model))
        return seen

    # The same by hand: each rank's own mean, each rank's own optimizer.
    models = [copy.deepcopy(MODEL) for _ in NUM_ROWS]
    optimizers = [optimizer_of(model, kind) for model in models]
    results = on_ranks(3, run)
    for step in range(6):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            (model(rows(rank, step)).square().sum() / max(NUM_ROWS[rank], 1)).backward()
            optimizer.step()
        if step % 3 == 2:
            averages = [
                sum(NUM_ROWS[rank] * each[rank] for rank in range(3)) / TOTAL
                for each in zip(*map(weights, models), strict=True)
            ]
            for model in models:
                for parameter, average in zip(model.parameters(), averages, strict=True):
                    parameter.data.copy_(average)
        for rank in range(3):
            for mine, expected in zip(results[rank][step], weights(models[rank]), strict=True):
                torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)
        assert equal(results[0][step], results[1][step]) == (step % 3 == 2)


def test_steps_send_nothing_and_an_average_sends_the_parameters(on_ranks):
    def run(communicator):
        model, local = start(communicator, every=2)
        optimizer = optimizer_of(model, "sgd")
        counted = [communicator.ledger.take(0)]
        for step in range(4):
            take_step(model, local, optimizer, communicator.rank, step)
            counted.append(communicator.ledger.take(step))
        local.synchronise()
        return [*counted, communicator.ledger.take(5)]

    for setup, *steps, after in on_ranks(3, run):
        assert {(row.phase, row.operation) for row in setup} == {("setup", "all_reduce")}
        assert [bool(rows) for rows in steps] == [False, True, False, True]
        for row in [*steps[1], *steps[3]]:
            assert (row.phase, row.operation) == ("gradients", "all_reduce")
            # 2 (P - 1) / P of the parameters and of what rows weigh, in whole bytes, for each of three ranks.
            assert row.num_bytes in (total := 2 * 2 * (NUM_WORDS + 1) * 8 // 3, total + 1)
        assert after == []


def test_a_penalty_beside_the_loss_counts_once(on_ranks):
    def run(communicator):
        model, local = start(communicator, every=2)
        optimizer = optimizer_of(model, "sgd")
        (local.share(own_loss(model, communicator.rank, 0)) + model.weight.square().sum()).backward()
        optimizer.step()
        local.end_step()
        local.synchronise()
        return weights(model)

    single = copy.deepcopy(MODEL)
    (sum(own_loss(single, rank, 0) for rank in range(3)) + single.weight.square().sum()).backward()
    optimizer_of(single, "sgd").step()
    for mine, expected in zip(on_ranks(3, run)[0], weights(single), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)


def test_frozen_parameters_stay_where_they_are(on_ranks):
    def run(communicator):
        model, local = start(communicator, every=2)
        model.bias.requires_grad_(False)
        model.bias += communicator.rank
        take_step(model, local, optimizer_of(model, "sgd"), communicator.rank, 0)
        local.synchronise()
        return model.bias - MODEL.bias.detach()

    for rank, moved in enumerate(on_ranks(3, run)):
        torch.testing.assert_close(moved, torch.full((3,), float(rank)).double())


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([0.5, 0.4], "and 0.9 in all"),
        ([0.5, float("nan")], "and nan in all"),
        # They add up, and the second by itself is sound.
        ([1.2, 0.3, -0.5], "and nan in all"),
    ],
)
def test_shares_that_are_not_shares_are_refused_by_all_ranks(shares, words, on_ranks):
    def run(communicator):
        with pytest.raises(ConfigError, match=words):
            LocalSteps(MODEL, communicator, every=2, share=shares[communicator.rank])
        return True

    assert all(on_ranks(len(shares), run))


def test_local_steps_are_two_or_more():
    with pytest.raises(ConfigError, match=r"should be 2 or more, got 1.*share gradients"):
        LocalSteps(build(), Communicator(LocalTransport(), Ledger(0)), every=1, share=1.0)


def test_a_loss_that_depends_on_another_module_is_refused():
    local = LocalSteps(build(), Communicator(LocalTransport(), Ledger(0)), every=2, share=1.0)
    with pytest.raises(ConfigError, match="not in the attached model"):
        local.share(nn.Linear(4, 1).double()(rows(0, 0)).sum())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_16_bits_keep_their_weights_when_nothing_was_learned(on_ranks, dtype):
    def average(communicator: Communicator) -> bool:
        model = copy.deepcopy(MODEL).to(dtype)
        local = LocalSteps(model, communicator, every=2, share=0.5)
        before = weights(model)
        for _ in range(4):
            # What forty thousand rows weigh is no number of float16, and 1006 none of bfloat16.
            local.share(model(torch.ones(1, 4, dtype=dtype)).sum(), 40_001.0 if dtype == torch.float16 else 503.0)
            local.end_step()
        return equal(weights(model), before)

    assert on_ranks(2, average) == [True, True]

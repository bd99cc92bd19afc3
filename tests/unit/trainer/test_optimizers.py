import pytest
import torch
from torch import nn

from laconic.trainer.config import TrainingConfig
from laconic.trainer.optimizers import build_optimizer


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("adam", lambda weights: torch.optim.Adam(weights, lr=0.1, weight_decay=0.01)),
        ("adamw", lambda weights: torch.optim.AdamW(weights, lr=0.1, weight_decay=0.01)),
        ("sgd", lambda weights: torch.optim.SGD(weights, lr=0.1, weight_decay=0.01, momentum=0.5)),
    ],
)
def test_a_step_is_that_of_torchs_plain_optimizer(name, plain):
    config = TrainingConfig(optimizer=name, lr=0.1, weight_decay=0.01, momentum=0.5)
    results = []
    for build in (plain, lambda weights: build_optimizer(weights, config)):
        weight = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64))
        optimizer = build([weight])
        for _ in range(3):
            optimizer.zero_grad()
            weight.pow(4).sum().backward()
            optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)


def test_frozen_weights_are_left_out():
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    trained = nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([frozen, trained], TrainingConfig())
    assert [group["params"] for group in optimizer.param_groups] == [[trained]]

"""What compression does to training: the paper's setting in bytes, and its theory on a small smooth problem."""

import runpy
from pathlib import Path

import pytest
import torch
from tests.equivalence.coded_runs import step
from tests.equivalence.halo_runs import IN, OUT, Stack, make_graph
from tests.placing import start
from torch import nn
from torch_geometric.nn import SAGEConv

from laconic.comm.transport import run_ranks
from laconic.datasets import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "varco_paper.py"


def test_the_paper_saves_a_sixth_of_all_bytes_and_not_a_128th_of_them():
    # The widths of ogbn-arxiv: 128 features, 40 classes.
    graph = load("sbm(nodes=2000, features=128, classes=40, degree=8.0)")
    first, run, full = runpy.run_path(str(EXAMPLE))["shares"](graph, 4)
    # Two of 256 columns, and the 40 of the last layer, of 296; headers beside.
    assert 300 * first / full == pytest.approx((2 + 40) / 296, rel=0.02)
    assert run / full == pytest.approx(0.83, abs=0.01)


def gradient_norms(text: str, epochs: int) -> list[float]:
    """Norms of the exact gradient, every sixty epochs of plain gradient descent through a codec."""
    graph = make_graph(24)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Stack(SAGEConv(IN, 8), nn.Tanh(), SAGEConv(8, 8), nn.Tanh(), SAGEConv(8, OUT)).double()

    models = [(build(), build()) for _ in range(2)]

    def on_rank(transport):
        torch.set_num_threads(1)
        model, twin = models[transport.rank]
        ways = "partitioner=random, edges=destination, reach=0"
        coded = start(f"exchange({text}, {ways})", graph, model, transport, seed=5)
        exact = start(f"exchange(codec=identity, {ways})", graph, twin, transport, seed=5)
        norms = []
        for epoch in range(1, epochs + 1):
            step(coded, epoch)
            with torch.no_grad():
                for parameter in model.parameters():
                    # A pull towards 0 keeps the minimum finite.
                    parameter -= 0.5 * (parameter.grad + 0.05 * parameter)
            if epoch % 60 == 0:
                twin.load_state_dict(model.state_dict())
                step(exact, 1)
                grads = [own.grad + 0.05 * own.detach() for own in twin.parameters()]
                norms.append(float(torch.cat([grad.flatten() for grad in grads]).norm()))
        return norms

    return run_ranks(2, on_rank)[0]


def test_a_fixed_rate_stalls_and_a_falling_rate_a_cache_and_error_feedback_do_not():
    stalled = {rate: gradient_norms(f"codec=prefix, schedule=constant(value={rate})", 240) for rate in (2.0, 8.0)}
    # The further the mask, the further from a stationary point; and it stays there.
    assert 0.1 < stalled[2.0][-1] < stalled[8.0][-1]
    for norms in stalled.values():
        assert norms[-1] > 0.9 * norms[-2]
    for text in (
        "codec=prefix, schedule=switch(first=8.0, at=60)",
        "codec=prefix, schedule=linear(slope=5.0, most=8.0, epochs=240)",
        "codec=cache, schedule=constant(value=4.0)",
        "codec=error_feedback(codec=topk), schedule=constant(value=2.0)",
    ):
        norms = gradient_norms(text, 240)
        assert norms[-1] < 0.1 * stalled[2.0][-1], text
        # By a share in equal times, so below any level in the end.
        assert norms[-1] < 0.8 * norms[-2] < 0.8 * 0.8 * norms[-3], text

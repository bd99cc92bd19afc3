"""Runs of one model on one machine and on ranks that are threads, and how they are compared."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.graph import Graph
from laconic.records import LedgerRecord
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun

IN, OUT = 6, 4
EPOCHS = 20


class Stack(nn.Module):
    """Layers one after the other: convolutions are given the edges, others are not."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x, edge_index):
        for layer in self.layers:
            x = layer(x, edge_index) if hasattr(layer, "propagate") else layer(x)
        return x


@dataclass
class Outcome:
    """What a rank saw."""

    losses: list[float]
    gradients: dict[str, torch.Tensor]
    predictions: dict[int, torch.Tensor]
    state: dict[str, torch.Tensor]
    counted: list[list[LedgerRecord]]
    predicted: list[LedgerRecord]


def make_graph(num_nodes: int = 60, *, seed: int = 0, weighted: bool = False) -> Graph:
    """Directed, with loops, duplicate edges, isolated nodes, and training nodes in one corner only."""
    rng = np.random.default_rng(seed)
    num_busy = max(num_nodes - 3, 1)
    edges = rng.integers(0, num_busy, (2, 5 * num_nodes))
    split = np.arange(num_nodes) * 3 // num_nodes
    ids = rng.permutation(1000)[:num_nodes]
    return Graph(
        x=torch.from_numpy(rng.normal(size=(num_nodes, IN))),
        y=torch.from_numpy(rng.integers(0, OUT, num_nodes)),
        edge_index=torch.from_numpy(edges),
        edge_weight=torch.from_numpy(rng.random(edges.shape[1])) if weighted else None,
        train_mask=torch.from_numpy(split == 0),
        val_mask=torch.from_numpy(split == 1),
        test_mask=torch.from_numpy(split == 2),
        num_classes=OUT,
        node_ids=torch.from_numpy(ids),
        name="test",
    )


def train(strategy_text: str, source: Graph, model: nn.Module, communicator: Communicator, epochs: int) -> Outcome:
    worker = parse_strategy(strategy_text).start(source, communicator, ExpectedRun(model), seed=5)
    predicted = worker.predict_traffic()
    setup = communicator.ledger.take(0)
    # No weight decay: of a bias before a norm, whose true gradient is zero, Adam with decay amplifies rounding a
    # thousandfold in every step (lr * decay / eps), on one machine as on several.
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, gradients, counted = [], {}, [setup]
    for epoch in range(1, epochs + 1):
        model.train()
        shard = worker.start_epoch(epoch)
        rows = shard.train_rows
        out = run_model(model, shard)
        local = F.cross_entropy(out[rows], shard.y[rows], reduction="sum") / worker.num_train
        loss = worker.share_loss(local)
        optimizer.zero_grad()
        loss.backward()
        if epoch == 1:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            logits = run_model(model, shard)
        counted.append(communicator.ledger.take(epoch))
    predictions = dict(zip(shard.node_ids[: shard.num_owned].tolist(), logits, strict=True))
    return Outcome(losses, gradients, predictions, copy.deepcopy(model.state_dict()), counted, predicted)


def outcomes(
    build: Callable[[], nn.Module], graph: Graph, num_ranks: int, partitioner: str, epochs: int, settings: str = ""
):
    torch.manual_seed(0)
    model = build().double()
    copies = [copy.deepcopy(model) for _ in range(num_ranks)]
    for other in copies[1:]:
        # Only rank 0's weights count.
        nn.init.zeros_(next(other.parameters()))

    def run(transport):
        torch.get_num_threads()
        torch.set_num_threads(1)
        communicator = Communicator(transport, Ledger(transport.rank))
        text = f"exchange(partitioner={partitioner}{settings})"
        return train(text, graph, copies[transport.rank], communicator, epochs)

    single = train("single", graph, model, Communicator(LocalTransport(), Ledger(0)), epochs)
    return single, run_ranks(num_ranks, run)


def check_equal(single: Outcome, ranks: list[Outcome]) -> None:
    predictions: dict[int, torch.Tensor] = {}
    for rank in ranks:
        np.testing.assert_allclose(rank.losses[0], single.losses[0], rtol=0, atol=1e-10)
        np.testing.assert_allclose(rank.losses, single.losses, rtol=0, atol=1e-8)
        assert rank.gradients.keys() == single.gradients.keys()
        for name, gradient in single.gradients.items():
            torch.testing.assert_close(rank.gradients[name], gradient, rtol=0, atol=1e-10, msg=name)
        for name, value in single.state.items():
            torch.testing.assert_close(rank.state[name], value, rtol=0, atol=1e-8, msg=name)
            assert torch.equal(rank.state[name], ranks[0].state[name]), f"{name} differs between ranks"
        predictions |= rank.predictions
    assert predictions.keys() == single.predictions.keys()
    for node, logits in single.predictions.items():
        torch.testing.assert_close(predictions[node], logits, rtol=0, atol=1e-8)


def check_traffic(ranks: list[Outcome]) -> None:
    for number, rank in enumerate(ranks):
        once = [row for row in rank.predicted if row.epoch == 0]
        every = [row for row in rank.predicted if row.epoch == 1]
        assert [row for row in rank.counted[1] if row.phase == "setup"] == relabelled(once, 1), f"rank {number}"
        for epoch, counted in enumerate(rank.counted[1:], start=1):
            assert [row for row in counted if row.phase != "setup"] == relabelled(every, epoch), f"rank {number}"
    sent, received = (
        sum(row.num_bytes for rank in ranks for rows in rank.counted for row in rows if row.direction == direction)
        for direction in ("sent", "received")
    )
    assert sent == received


def relabelled(rows: list[LedgerRecord], epoch: int) -> list[LedgerRecord]:
    return [LedgerRecord(epoch, *(getattr(row, name) for name in LedgerRecord.__slots__[1:])) for row in rows]

"""Runs of `gradient_only` and `grappa` on ranks that are threads, and of `single`; plain sums to compare them with."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import scatter

from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.graph import Graph
from laconic.partitioners import PARTITIONERS, assign_parts
from laconic.records import CoverageRecord, LedgerRecord
from laconic.session.objective import loss_part, usual_loss
from laconic.specs import parse_spec
from laconic.store import Store
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun

LR = 0.01


class OwnConv(MessagePassing):
    """A convolution of a user's own: messages are gated by both ends, and the largest of them counts too."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__(aggr=["sum", "max"])
        # Known convolutions say it too: with it the layer is tried alone before ranks share it.
        self.in_channels = num_in
        self.root = nn.Linear(num_in, num_out)
        self.out = nn.Linear(2 * num_in, num_out)
        self.gate = nn.Linear(2 * num_in, num_in)

    def forward(self, x, edge_index):
        return self.root(x) + self.out(self.propagate(edge_index, x=x))

    def message(self, x_i, x_j):
        return x_j * torch.sigmoid(self.gate(torch.cat([x_i, x_j], dim=1)))


@dataclass
class Outcome:
    """What a rank saw, epoch by epoch."""

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    predictions: dict[int, torch.Tensor] = field(default_factory=dict)
    states: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """Of the model, after each epoch."""
    counted: list[list[LedgerRecord]] = field(default_factory=list)
    in_step: list[list[LedgerRecord]] = field(default_factory=list)
    """What was booked from the forward pass of a step to its end."""
    predicted: list[list[LedgerRecord]] = field(default_factory=list)
    coverage: list[CoverageRecord] = field(default_factory=list)

    @property
    def state(self) -> dict[str, torch.Tensor]:
        return self.states[-1]


def train(
    text: str,
    source: Graph | Store,
    model: nn.Module,
    communicator: Communicator,
    epochs: int,
    *,
    foretold: bool = False,
) -> Outcome:
    """Trains with a strategy as the trainer does: one step and one exact evaluation per epoch.

    Args:
        foretold: have the traffic of every epoch predicted before.
    """
    worker = parse_strategy(text).start(source, communicator, ExpectedRun(model, epochs), seed=5)
    seen = Outcome()
    if foretold:
        seen.predicted = [worker.predict_traffic(epoch) for epoch in range(1, epochs + 1)]
    ledger = communicator.ledger
    ledger.take(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    for epoch in range(1, epochs + 1):
        model.train()
        shard = worker.start_epoch(epoch)
        before = ledger.take(epoch)
        rows = shard.train_rows
        factors = None if worker.row_factors is None else worker.row_factors * worker.num_train
        part = loss_part(usual_loss(shard.y), run_model(model, shard)[rows], shard.y[rows], factors)
        loss = worker.share_loss(part.total, part.weight)
        optimizer.zero_grad()
        loss.backward()
        seen.gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
        seen.losses.append(loss.item())
        seen.in_step.append(ledger.take(epoch))
        model.eval()
        with torch.no_grad():
            logits = run_model(model, shard)
        seen.counted.append(added_up([*before, *seen.in_step[-1], *ledger.take(epoch)], communicator.rank, epoch))
        seen.coverage += worker.take_records()
        seen.states.append(copy.deepcopy(model.state_dict()))
    seen.predictions = dict(zip(shard.node_ids[: shard.num_owned].tolist(), logits, strict=True))
    return seen


def added_up(rows: list[LedgerRecord], rank: int, epoch: int) -> list[LedgerRecord]:
    """Rows of one epoch, one for each place of the step, in the ledger's order."""
    ledger = Ledger(rank)
    for row in rows:
        counts = (row.num_messages, row.num_bytes)
        with ledger.phase(row.phase, layer=row.layer):
            ledger.count(row.operation, *((*counts, 0, 0) if row.direction == "sent" else (0, 0, *counts)))
    return ledger.take(epoch)


def models_of(build: Callable[[], nn.Module], num: int) -> list[nn.Module]:
    """Models of equal weights, made before any thread: torch's generator belongs to all of them."""
    torch.manual_seed(0)
    model = build().double()
    return [copy.deepcopy(model) for _ in range(num)]


def run_single(build: Callable[[], nn.Module], graph: Graph, epochs: int) -> Outcome:
    return train("single", graph, models_of(build, 1)[0], Communicator(LocalTransport(), Ledger(0)), epochs)


def run_isolated(
    build: Callable[[], nn.Module],
    source: Graph | Store | list[Store],
    num_ranks: int,
    settings: str,
    epochs: int,
    *,
    strategy: str = "gradient_only",
    foretold: bool = False,
) -> list[Outcome]:
    """Outcomes of all ranks; a list of stores has one for each."""
    models = models_of(build, num_ranks)
    for other in models[1:]:
        # Only rank 0's weights count.
        nn.init.zeros_(next(other.parameters()))

    def run(transport):
        torch.get_num_threads()
        torch.set_num_threads(1)
        communicator = Communicator(transport, Ledger(transport.rank))
        own = source[transport.rank] if isinstance(source, list) else source
        text = f"{strategy}({settings})"
        return train(text, own, models[transport.rank], communicator, epochs, foretold=foretold)

    return run_ranks(num_ranks, run, timeout=60)


def run_grappa(
    build: Callable[[], nn.Module],
    source: Graph | Store | list[Store],
    num_ranks: int,
    settings: str,
    epochs: int,
    *,
    foretold: bool = False,
) -> list[Outcome]:
    """The same with the strategy `grappa`."""
    return run_isolated(build, source, num_ranks, settings, epochs, strategy="grappa", foretold=foretold)


def parts_of(graph: Graph, num_chunks: int, partitioner: str = "random") -> torch.Tensor:
    """The chunk of each node, as the strategy cuts a graph in memory."""
    spec = parse_spec(partitioner, PARTITIONERS, family="partitioner")
    return torch.from_numpy(np.asarray(assign_parts(graph, spec, num_chunks, seed=0), np.int64))


def check_equal(single: Outcome, ranks: list[Outcome]) -> None:
    """Losses, predictions and gradients of the first step to 1e-10, what Adam made of them to 1e-8."""
    predictions: dict[int, torch.Tensor] = {}
    for rank in ranks:
        np.testing.assert_allclose(rank.losses[0], single.losses[0], rtol=0, atol=1e-10)
        np.testing.assert_allclose(rank.losses, single.losses, rtol=0, atol=1e-8)
        check_gradients(rank.gradients[0], single.gradients[0])
        for name, value in single.state.items():
            torch.testing.assert_close(rank.state[name], value, rtol=0, atol=1e-8, msg=name)
        predictions |= rank.predictions
    assert predictions.keys() == single.predictions.keys()
    for node, logits in single.predictions.items():
        torch.testing.assert_close(predictions[node], logits, rtol=0, atol=1e-8)
    check_alike(ranks)


def check_gradients(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-10, msg=name)


def check_alike(ranks: list[Outcome]) -> None:
    """All ranks end with the same bits: weights, and statistics that were combined for the last evaluation."""
    for rank in ranks[1:]:
        for name, value in ranks[0].state.items():
            assert torch.equal(rank.state[name], value), f"{name} differs between ranks"


def mean_loss(model: nn.Module, graph: Graph) -> torch.Tensor:
    """The training loss of a plain model on the whole graph."""
    out = model(graph.x, graph.edge_index)
    return F.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask])


def in_degrees(graph: Graph) -> torch.Tensor:
    """How many edges arrive at each node, duplicates and loops included, (N,)."""
    ones = torch.ones(graph.num_edges, dtype=torch.float64)
    return scatter(ones, graph.edge_index[1], dim=0, dim_size=graph.num_nodes)


def check_follows(rank: Outcome, plain: nn.Module, loss_of: Callable[[int], torch.Tensor], epochs: int) -> None:
    """Trains `plain` by the losses of a reference: those of the rank, its first gradients and its end are the same."""
    optimizer = torch.optim.Adam(plain.parameters(), lr=LR)
    for epoch in range(epochs):
        loss = loss_of(epoch)
        optimizer.zero_grad()
        loss.backward()
        np.testing.assert_allclose(rank.losses[epoch], loss.item(), rtol=0, atol=1e-8 if epoch else 1e-10)
        if epoch == 0:
            check_gradients(rank.gradients[0], {key: p.grad for key, p in plain.named_parameters()})
        optimizer.step()
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(rank.state[key], parameter.detach(), rtol=0, atol=1e-8, msg=key)

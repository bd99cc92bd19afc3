"""Runs of compression.py: one model trained by one contender, ranks as threads of this process."""

import time
from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

from laconic.attach import attach, detached_copy
from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport, run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.datasets import load
from laconic.gradients.worker import Worker
from laconic.graph import Graph, Shard
from laconic.models import build_model, parse_model
from laconic.partitioners import PARTITIONERS, assign_parts
from laconic.session.data import prepare_features
from laconic.session.evaluate import Evaluation
from laconic.specs import parse_spec
from laconic.store import Store
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun

Numbers = dict[str, float]
SCORED_EVERY = 5
WIDTH = 64
DROPOUT = 0.5
MODEL = f"sage(hidden={WIDTH}, layers=3, dropout={{dropout}})"
# The paper begins at 128, on rows of 256; of ours, that wide, one column is the least.
PAPER = "codec=subset, raw_last=True, schedule=linear(slope=5.0, most={width}.0, epochs={epochs})"


def strategy_of(method: str, partitioner: str, epochs: int, *, width: int = WIDTH) -> str:
    """Returns the spec of a contender; `method` is its name, or the settings themselves."""
    settings = {
        "full": "codec=identity",
        "paper": PAPER.format(width=width, epochs=epochs),
        "ours": "codec=quantize(bits=2)",
        "feedback": "codec=error_feedback",
        "adaptive": f"codec=quantize, schedule=adaptive(epochs={epochs})",
    }
    if method.startswith("fixed "):
        settings[method] = f"codec=subset, schedule=constant(value={method.split()[1]}.0)"
    return f"exchange({settings.get(method, method)}, partitioner={partitioner})"


@lru_cache(maxsize=1)
def graph_called(name: str) -> Graph:
    return prepare_features(load(name), "auto")[0]


def models_for(graph: Graph, num_ranks: int, seed: int, dropout: float = DROPOUT) -> list[nn.Module]:
    """Before the ranks start: first weights come from torch's own generator."""
    sizes = {"num_features": graph.num_features, "num_classes": graph.num_classes}
    spec = parse_model(MODEL.format(dropout=dropout))
    return [build_model(spec, **sizes, seed=seed) for _ in range(num_ranks)]


def measure(
    name: str, num_ranks: int, partitioner: str, method: str, seed: int, epochs: int, dropout: float
) -> Numbers:
    """Returns accuracy in percent, the bytes of rows and gradients, and both after every few epochs, for areas."""
    torch.set_num_threads(1)
    graph, since = graph_called(name), time.perf_counter()
    models = models_for(graph, num_ranks, seed, dropout)
    if method == "none":
        parts = without_bridges(graph, num_ranks, partitioner)
        alone = Communicator(LocalTransport(), Ledger(0))
        curves = [train("single", parts, models[0], alone, seed, epochs, graph)]
    else:

        def on_rank(transport: Transport) -> Curve:
            torch.set_num_threads(1)
            communicator = Communicator(transport, Ledger(transport.rank))
            strategy = strategy_of(method, partitioner, epochs)
            return train(strategy, graph, models[transport.rank], communicator, seed, epochs, None)

        curves = run_ranks(num_ranks, on_rank, timeout=1800)
    return {**summary(curves), "seconds": time.perf_counter() - since}


# After every few epochs: bytes that this rank has sent by then, validation and test accuracy.
Curve = list[tuple[int, float, float]]


def train(
    strategy: str,
    graph: Graph,
    model: nn.Module,
    communicator: Communicator,
    seed: int,
    epochs: int,
    scored_on: Graph | None,
) -> Curve:
    """Trains, and scores on the whole graph with full communication."""
    worker = start(strategy, graph, model, communicator, seed)
    evaluate = Evaluation("accuracy", worker.shard, communicator)
    optimizer = new_optimizer(model)
    num_bytes, curve = 0, []
    for epoch in range(1, epochs + 1):
        step(worker, optimizer, epoch)
        num_bytes += rows_and_gradients(communicator.ledger, epoch)
        if epoch % SCORED_EVERY == 0 or epoch == epochs:
            scores = evaluate(model, worker.shard) if scored_on is None else score_whole(model, scored_on, communicator)
            communicator.ledger.take(epoch)
            curve.append((num_bytes, scores["val"], scores["test"]))
    return curve


def new_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def start(strategy: str, data: Graph | Store, model: nn.Module, communicator: Communicator, seed: int = 0) -> Worker:
    """The worker of a strategy, given by its spec."""
    return parse_strategy(strategy).start(data, communicator, ExpectedRun(model), seed=seed)


def step(worker: Worker, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """One epoch of training."""
    model = worker.model.train()
    shard = worker.start_epoch(epoch)
    rows = shard.train_rows
    out = run_model(model, shard)
    loss = worker.share_loss(F.cross_entropy(out[rows], shard.y[rows], reduction="sum") / worker.num_train)
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


def rows_and_gradients(ledger: Ledger, epoch: int, *, and_setup: bool = False) -> int:
    """Bytes that a rank sent in an epoch, but for the loss and the model's gradients."""
    return sum(
        row.num_bytes
        for row in ledger.take(epoch)
        if row.direction == "sent"
        and ((row.phase in ("forward", "backward") and row.layer >= 0) or (and_setup and row.phase == "setup"))
    )


def score_whole(model: nn.Module, graph: Graph, communicator: Communicator) -> dict[str, float]:
    """Scores a model that was trained on a part of a graph's edges on all of them."""
    plain, shard = detached_copy(model), Shard.whole(graph)
    attach(plain, shard)
    return Evaluation("accuracy", shard, communicator)(plain, shard)


def without_bridges(graph: Graph, num_ranks: int, partitioner: str) -> Graph:
    """The graph without the edges between parts."""
    member = parse_spec(partitioner, PARTITIONERS, family="partitioner")
    parts = torch.from_numpy(assign_parts(graph, member, num_ranks, seed=0))
    source, destination = graph.edge_index
    return replace(graph, edge_index=graph.edge_index[:, parts[source] == parts[destination]])


def summary(curves: list[Curve]) -> Numbers:
    """Adds up the bytes of all ranks; accuracy is that of the best validation so far."""
    numbers: Numbers = {}
    best = (-1.0, 0.0)
    for point, (_, val, test) in enumerate(curves[0]):
        best = max(best, (val, test), key=lambda pair: pair[0])
        numbers[f"bytes {point}"] = sum(curve[point][0] for curve in curves)
        numbers[f"test {point}"] = 100 * best[1]
    return {"test": 100 * best[1], "bytes": sum(curve[-1][0] for curve in curves), **numbers}


def trace(name: str, num_ranks: int, partitioner: str, method: str, epochs: int) -> Numbers:
    """Returns for each epoch the rate that bytes show, against full communication, and the relative error of rows."""
    graph = graph_called(name)
    models = models_for(graph, num_ranks, 0)

    def on_rank(transport: Transport) -> list[tuple[int, int, float, float]]:
        torch.set_num_threads(1)
        communicator = Communicator(transport, Ledger(transport.rank))
        model = models[transport.rank]
        exact = start(strategy_of("full", partitioner, epochs), graph, model, communicator)
        rows = exact.predict_traffic()
        exact.attachment.detach()
        worker = start(strategy_of(method, partitioner, epochs), graph, model, communicator)
        coded = worker.coder.fetch
        # A schedule that goes by errors takes them itself.
        is_asked = coded.errors is not None
        coded.errors = {}
        full = sum(row.num_bytes for row in rows if row.layer >= 0 and row.phase in ("forward", "backward")) // 2
        optimizer, found = new_optimizer(model), []
        for epoch in range(1, epochs + 1):
            communicator.ledger.take(0)
            step(worker, optimizer, epoch)
            lost = sum(one.lost for one in coded.errors.values())
            sent = sum(one.sent for one in coded.errors.values())
            if not is_asked:
                coded.errors = {}
            found.append((full, rows_and_gradients(communicator.ledger, epoch), lost, sent))
        return found

    numbers: Numbers = {}
    for epoch, ranks in enumerate(zip(*run_ranks(num_ranks, on_rank, timeout=1800), strict=True), start=1):
        full, num_bytes, lost, sent = (sum(column) for column in zip(*ranks, strict=True))
        numbers[f"rate {epoch}"] = full / num_bytes
        numbers[f"error {epoch}"] = lost / sent if sent else 0.0
    return numbers

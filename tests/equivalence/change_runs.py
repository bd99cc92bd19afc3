"""Runs whose graph changes on the way, and runs on a store that was written of the changed graph."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tests.equivalence.coded_runs import WORK, begin, predict, sage, step, with_ways
from tests.equivalence.halo_runs import IN, OUT, make_graph
from torch import nn

from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport, run_ranks
from laconic.gradients.worker import Worker
from laconic.graph import Graph, GraphChange, NewNodes
from laconic.records import LedgerRecord
from laconic.store import open_store, write_store

CHANGE_AFTER, LAST = 3, 6


@dataclass
class Seen:
    """What a rank saw, by epoch."""

    losses: dict[int, float] = field(default_factory=dict)
    gradients: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    predictions: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)
    counted: dict[int, list[LedgerRecord]] = field(default_factory=dict)
    predicted: dict[int, list[LedgerRecord]] = field(default_factory=dict)
    once: dict[int, list[LedgerRecord]] = field(default_factory=dict)
    expected_once: dict[int, list[LedgerRecord]] = field(default_factory=dict)
    parts: dict[int, list[int]] = field(default_factory=dict)
    num_halo: int = 0
    model: dict[str, torch.Tensor] = field(default_factory=dict)
    optimizer: dict[int, dict] = field(default_factory=dict)
    models: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)


def draw_change(graph: Graph, seed: int, *, first_id: int = 5000, num_new: int = 7) -> GraphChange:
    """Some of everything: edges that are there twice, edges of nodes that leave, new nodes that are joined."""
    rng = np.random.default_rng(seed)
    ids, edges = graph.node_ids.numpy(), graph.edge_index.numpy()
    removed = ids[rng.choice(len(ids) // 2, 4, replace=False) + 2]
    taken = ids[edges[:, rng.choice(edges.shape[1], 20, replace=False)]]
    new = np.arange(first_id, first_id + num_new)
    left = np.concatenate([np.setdiff1d(ids, removed), new])
    added = np.concatenate([rng.choice(left, (2, 40)), [rng.choice(new, 12), rng.choice(left, 12)]], axis=1)
    split = np.arange(num_new) % 3
    weights = None if graph.edge_weight is None else torch.from_numpy(rng.random(added.shape[1]))
    return GraphChange(
        add_edges=torch.from_numpy(added),
        remove_edges=torch.from_numpy(taken),
        remove_nodes=torch.from_numpy(removed),
        add_nodes=NewNodes(
            ids=torch.from_numpy(new),
            x=torch.from_numpy(rng.normal(size=(num_new, IN))),
            y=torch.from_numpy(rng.integers(0, OUT, num_new)),
            train_mask=torch.from_numpy(split == 0),
            val_mask=torch.from_numpy(split == 1),
            test_mask=torch.from_numpy(split == 2),
        ),
        add_weights=weights,
    )


def changed_graph(graph: Graph, change: GraphChange) -> Graph:
    """The changed graph, one edge and one node at a time."""
    ids = graph.node_ids.tolist()
    weights = [1.0] * graph.num_edges if graph.edge_weight is None else graph.edge_weight.tolist()
    edges = [(ids[u], ids[v], weight) for (u, v), weight in zip(graph.edge_index.T.tolist(), weights, strict=True)]
    for u, v in change.remove_edges.T.tolist():
        edges.pop(next(at for at, edge in enumerate(edges) if edge[:2] == (u, v)))
    gone = set(change.remove_nodes.tolist())
    edges = [edge for edge in edges if edge[0] not in gone and edge[1] not in gone]
    added = [1.0] * change.add_edges.shape[1] if change.add_weights is None else change.add_weights.tolist()
    edges += [(u, v, weight) for (u, v), weight in zip(change.add_edges.T.tolist(), added, strict=True)]
    kept = torch.tensor([row for row, node in enumerate(ids) if node not in gone])
    fields = {name: getattr(graph, name)[kept] for name in ("x", "y", "train_mask", "val_mask", "test_mask")}
    left = [ids[row] for row in kept.tolist()]
    if change.add_nodes is not None:
        left += change.add_nodes.ids.tolist()
        fields = {name: torch.cat([values, getattr(change.add_nodes, name)]) for name, values in fields.items()}
    row_of = {node: row for row, node in enumerate(left)}
    return Graph(
        edge_index=torch.tensor([[row_of[u], row_of[v]] for u, v, _ in edges]).T.contiguous(),
        edge_weight=None
        if graph.edge_weight is None
        else torch.tensor([edge[2] for edge in edges], dtype=torch.float64),
        node_ids=torch.tensor(left),
        num_classes=OUT,
        name="changed",
        **fields,
    )


def train(worker: Worker, communicator: Communicator, seen: Seen, optimizer, epochs, changes) -> None:
    """Trains some epochs; `changes` has what is to change before an epoch."""
    model, shard = worker.model, worker.shard
    for epoch in epochs:
        for change in changes.get(epoch, []):
            seen.parts[epoch] = (shard := worker.change(change)).node_ids[: shard.num_owned].tolist()
        communicator.ledger.take(0)
        seen.predicted[epoch] = predict(worker, epoch)
        seen.expected_once[epoch] = [row for row in worker.predict_traffic(epoch) if not row.epoch]
        seen.losses[epoch] = float(step(worker, epoch))
        seen.gradients[epoch] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = run_model(model, shard)
        rows = communicator.ledger.take(epoch)
        seen.counted[epoch] = [row for row in rows if row.phase in WORK]
        seen.once[epoch] = [row for row in rows if row.phase == "setup"]
        seen.predictions[epoch] = dict(zip(shard.node_ids[: shard.num_owned].tolist(), logits, strict=True))
        seen.models[epoch] = copy.deepcopy(model.state_dict())
        seen.optimizer[epoch] = copy.deepcopy(optimizer.state_dict())
    seen.model = copy.deepcopy(model.state_dict())
    seen.num_halo = len(shard.halo_ids)


def run_changing(
    text: str,
    changes: dict[int, list[GraphChange]],
    *,
    num_ranks: int = 3,
    build: Callable[[], nn.Module] = sage,
    graph: Graph | None = None,
    last: int = LAST,
    lr: float = 0.01,
) -> list[Seen]:
    """Trains on ranks while the graph changes: `changes` has what does before an epoch."""
    graph = make_graph(90) if graph is None else graph
    models = [build() for _ in range(num_ranks)]

    def on_rank(transport: Transport) -> Seen:
        torch.set_num_threads(1)
        model, seen = models[transport.rank], Seen()
        communicator = Communicator(transport, Ledger(transport.rank))
        worker = begin(f"exchange({with_ways(text)}, partitioner=random)", graph, model, communicator)
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        train(worker, communicator, seen, optimizer, range(1, last + 1), changes)
        return seen

    return run_ranks(num_ranks, on_rank)


def run_rebuilt(
    text: str,
    after: list[Seen],
    epoch: int,
    graph: Graph,
    folder: Path,
    *,
    build: Callable[[], nn.Module] = sage,
    last: int = LAST,
    lr: float = 0.01,
) -> list[Seen]:
    """Goes on from the weights before `epoch` on a store of `graph`, with the nodes where they were placed then."""
    num_ranks = len(after)
    rank_of = {node: rank for rank, seen in enumerate(after) for node in seen.parts[epoch]}
    parts = np.array([rank_of[node] for node in graph.node_ids.tolist()])
    write_store(graph, parts, folder, num_parts=num_ranks)
    store = open_store(folder)
    models = [build() for _ in range(num_ranks)]

    def on_rank(transport: Transport) -> Seen:
        torch.set_num_threads(1)
        model, seen = models[transport.rank], Seen()
        model.load_state_dict(after[0].models[epoch - 1])
        communicator = Communicator(transport, Ledger(transport.rank))
        worker = begin(f"exchange({with_ways(text)})", store, model, communicator)
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        optimizer.load_state_dict(copy.deepcopy(after[0].optimizer[epoch - 1]))
        train(worker, communicator, seen, optimizer, range(epoch, last + 1), {})
        return seen

    return run_ranks(num_ranks, on_rank)


def check_equal(changed: list[Seen], rebuilt: list[Seen], epoch: int) -> None:
    """From `epoch` on, both saw the same."""
    for one, other in zip(changed, rebuilt, strict=True):
        for number in other.losses:
            # The first step is the same; then Adam makes rounding larger.
            atol = 1e-10 if number == epoch else 1e-8
            assert abs(one.losses[number] - other.losses[number]) <= atol, number
            assert one.gradients[number].keys() == other.gradients[number].keys()
            for name, gradient in other.gradients[number].items():
                torch.testing.assert_close(one.gradients[number][name], gradient, rtol=0, atol=atol, msg=name)
            assert one.predictions[number].keys() == other.predictions[number].keys()
            for node, logits in other.predictions[number].items():
                torch.testing.assert_close(one.predictions[number][node], logits, rtol=0, atol=1e-8)


def check_predicted(runs: list[Seen]) -> None:
    for rank, seen in enumerate(runs):
        for epoch, counted in seen.counted.items():
            assert counted == seen.predicted[epoch], f"rank {rank}, epoch {epoch}"

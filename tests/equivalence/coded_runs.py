"""Runs of `exchange` with codecs, on ranks that are threads."""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from tests.equivalence.halo_runs import IN, OUT, make_graph
from torch import nn
from torch_geometric.nn import GraphSAGE

from laconic.attach.forward import run_model
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport, run_ranks
from laconic.gradients.worker import Worker
from laconic.graph import Graph
from laconic.records import LedgerRecord
from laconic.store import Store
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun

WORK = ("forward", "backward", "gradients", "evaluation")


@dataclass
class Run:
    """What a rank saw."""

    losses: list[float] = field(default_factory=list)
    predictions: dict[int, torch.Tensor] = field(default_factory=dict)
    model: dict[str, torch.Tensor] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    counted: dict[int, list[LedgerRecord]] = field(default_factory=dict)
    predicted: dict[int, list[LedgerRecord]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)


def sage(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return GraphSAGE(IN, 24, 3, OUT).to(dtype)


def begin(text: str, source: Graph | Store, model: nn.Module, communicator: Communicator) -> Any:
    """The worker of a strategy, checked."""
    return parse_strategy(text).start(source, communicator, ExpectedRun(model), seed=5)


def step(worker: Worker, epoch: int) -> torch.Tensor:
    """Forward and backward of an epoch; the loss."""
    model = worker.model.train()
    shard = worker.start_epoch(epoch)
    rows = shard.train_rows
    out = run_model(model, shard)
    loss = worker.share_loss(F.cross_entropy(out[rows], shard.y[rows], reduction="sum") / worker.num_train)
    model.zero_grad()
    loss.backward()
    return loss.detach()


def with_ways(text: str) -> str:
    """Returns settings with plain halo exchange, where they do not say how neighbours are known."""
    return text if "edges=" in text else f"{text}, edges=destination, reach=0"


def run_coded(
    text: str,
    epochs: int,
    *,
    num_ranks: int = 3,
    build: Callable[[], nn.Module] = sage,
    graph: Graph | None = None,
    transport_of: Callable[[Transport], Transport] = lambda transport: transport,
    resume_at: int = 0,
) -> list[Run]:
    """Trains on ranks; `text` is what stands in the brackets of exchange.

    Args:
        resume_at: after this epoch, everything is built anew and goes on from the state.
    """
    graph = make_graph(90) if graph is None else graph
    models = [build() for _ in range(num_ranks)]
    # Rank 0's state is the one that a checkpoint holds.
    saved: dict[str, Any] = {}

    def on_rank(transport: Transport) -> Run:
        torch.set_num_threads(1)
        run, communicator = Run(), Communicator(transport_of(transport), Ledger(transport.rank))
        model = models[transport.rank]

        def begin_run(model: nn.Module) -> tuple[Worker, torch.optim.Optimizer]:
            worker = begin(f"exchange({with_ways(text)}, partitioner=random)", graph, model, communicator)
            return worker, torch.optim.Adam(model.parameters(), lr=0.01)

        worker, optimizer = begin_run(model)
        communicator.ledger.take(0)
        for epoch in range(1, epochs + 1):
            if "adaptive" not in text:
                run.predicted[epoch] = predict(worker, epoch)
            run.losses.append(float(step(worker, epoch)))
            run.gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            optimizer.step()
            model.eval()
            with torch.no_grad():
                logits = run_model(model, worker.shard)
            run.counted[epoch] = [row for row in communicator.ledger.take(epoch) if row.phase in WORK]
            if epoch == resume_at:
                tensors, state = worker.tensors(), json.dumps(worker.state())
                if transport.rank == 0:
                    saved["state"] = state
                    saved["tensors"] = load(save({name: value.clone() for name, value in tensors.items()}))
                communicator.barrier()
                held = optimizer.state_dict()
                fresh = copy.deepcopy(model)
                worker.attachment.detach()
                plain = build()
                plain.load_state_dict(fresh.state_dict())
                model = plain
                worker, optimizer = begin_run(model)
                optimizer.load_state_dict(held)
                worker.load_state(json.loads(str(saved["state"])))
                worker.load_tensors(dict(saved["tensors"]))
                communicator.ledger.take(0)
        for epoch in run.counted:
            # Given what was measured on the way, if the schedule goes by that.
            run.predicted.setdefault(epoch, predict(worker, epoch))
        shard = worker.shard
        run.predictions = dict(zip(shard.node_ids[: shard.num_owned].tolist(), logits, strict=True))
        run.model = {name: value.clone() for name, value in model.state_dict().items()}
        return run

    return run_ranks(num_ranks, on_rank)


def predict(worker: Worker, epoch: int) -> list[LedgerRecord]:
    return [row for row in worker.predict_traffic(epoch) if row.epoch]


def total(runs: list[Run], phases: tuple[str, ...] = ("forward", "backward"), epoch: int | None = None) -> int:
    """Bytes of rows and gradients that all ranks sent."""
    return sum(
        row.num_bytes
        for run in runs
        for number, rows in run.counted.items()
        for row in rows
        if row.phase in phases
        and row.direction == "sent"
        and row.operation == "all_to_all"
        and (epoch is None or number == epoch)
    )


def check_predicted(runs: list[Run]) -> None:
    for rank, run in enumerate(runs):
        for epoch, counted in run.counted.items():
            assert counted == run.predicted[epoch], f"rank {rank}, epoch {epoch}"

"""How accuracy rises with the epochs of training, for any strategy: ranks are threads of this process.

Models are built from the seed before ranks begin, so that all strategies start from the same weights; evaluation is
exact and on the whole graph, whatever the strategy.
"""

import copy
import gc
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from laconic.comm import Communicator, Ledger, Transport, run_ranks
from laconic.comm.transport.local import LocalTransport
from laconic.gradients.worker import Worker
from laconic.graph import Graph
from laconic.models import build_model, parse_model
from laconic.papers.grappa.worker import GrappaWorker
from laconic.session import Session
from laconic.strategies import parse_strategy


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, apart from the strategy.

    Args:
        model: spec of a sample model.
        epochs: at most.
        evaluate_every: epochs between scores.
        patience: epochs without a better validation score after which training ends; 0 never.
    """

    model: str
    epochs: int
    lr: float = 0.01
    weight_decay: float = 0.0
    evaluate_every: int = 5
    patience: int = 0


@dataclass(frozen=True)
class Curve:
    """Scores in percent, by epoch."""

    epochs: list[int] = field(default_factory=list)
    val: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)

    @property
    def best(self) -> int:
        """Place of the best validation score, the first of equal ones."""
        return self.val.index(max(self.val))

    def epochs_to(self, val: float) -> float:
        """Returns the first epoch that reached a validation score; infinite if none did."""
        return next(
            (float(epoch) for epoch, score in zip(self.epochs, self.val, strict=True) if score >= val), torch.inf
        )


def train(graph: Graph, strategy: str, num_ranks: int, recipe: Recipe, seed: int) -> Curve:
    """Returns the curve of one run; `single` is for one rank."""
    model = build_model(
        parse_model(recipe.model), num_features=graph.num_features, num_classes=graph.num_classes, seed=seed
    )
    copies = [copy.deepcopy(model) for _ in range(num_ranks)]
    # What the run before held hangs together in circles: gigabytes, of few objects, that nothing else would free.
    gc.collect()
    if num_ranks == 1:
        return _train_rank(LocalTransport(), graph, strategy, copies, recipe, seed)
    return run_ranks(num_ranks, lambda t: _train_rank(t, graph, strategy, copies, recipe, seed), timeout=600)[0]


def _train_rank(
    transport: Transport, graph: Graph, strategy: str, models: Sequence[torch.nn.Module], recipe: Recipe, seed: int
) -> Curve:
    if transport.num_ranks > 1:
        # Of this thread: ranks share the cores. Asked first, for torch sets it up at the first question.
        torch.get_num_threads()
        torch.set_num_threads(1)
    # Not `join`, which would compare a checksum of the graph between ranks that share it.
    session = Session(graph, parse_strategy(strategy), seed, Communicator(transport, Ledger(transport.rank)))
    model = session.attach(models[transport.rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    curve = Curve()
    for epoch, shard in session.epochs(recipe.epochs):
        model.train()
        loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % recipe.evaluate_every == 0 or epoch == recipe.epochs:
            scores = session.evaluate()
            curve.epochs.append(epoch)
            curve.val.append(100 * scores["val"])
            curve.test.append(100 * scores["test"])
            # Scores are the same on all ranks, so that all of them stop.
            if recipe.patience and epoch - curve.epochs[curve.best] >= recipe.patience:
                break
    return curve


def first_gradients(graph: Graph, strategy: str, num_ranks: int, model: str) -> list[torch.Tensor]:
    """Returns the gradient of the first step, all parameters in one row, for each super-epoch of a sweep.

    The weights stay as they are. The strategy should have a super-epoch per epoch, or none.
    """
    spec = parse_model(model)
    built = build_model(spec, num_features=graph.num_features, num_classes=graph.num_classes, seed=0)
    copies = [copy.deepcopy(built) for _ in range(num_ranks)]

    def run(transport: Transport) -> list[torch.Tensor]:
        session = Session(graph, parse_strategy(strategy), 0, Communicator(transport, Ledger(transport.rank)))
        model = session.attach(copies[transport.rank])
        gradients = []
        for _, shard in session.epochs(_sweep_length(session.worker)):
            model.zero_grad()
            session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard).backward()
            gradients.append(torch.cat([parameter.grad.flatten().double() for parameter in model.parameters()]))
        return gradients

    return run(LocalTransport()) if num_ranks == 1 else run_ranks(num_ranks, run, timeout=600)[0]


def _sweep_length(worker: Worker) -> int:
    return worker.plan.sweep(0).num_super_epochs if isinstance(worker, GrappaWorker) else 1

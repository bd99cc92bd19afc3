"""PreparedRun: all that takes part in training, built from a configuration and checked before any file is written."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from laconic.attach.forward import warn_of_unused_weights
from laconic.comm import Communicator
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement
from laconic.models import build_model
from laconic.session import Session
from laconic.session.data import describe_data, describe_split, open_data
from laconic.session.evaluate import Evaluation
from laconic.store import Store
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun
from laconic.trainer.batches import Batches, choose_batches
from laconic.trainer.config import Config
from laconic.trainer.config_file import model_name
from laconic.trainer.optimizers import build_optimizer
from laconic.trainer.progress import Display
from laconic.units import format_count

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class PreparedRun:
    """The data, the model, and who trains and scores it."""

    session: Session
    optimizer: Optimizer
    batches: Batches
    evaluation: Evaluation
    inputs: dict[str, Any]
    """What the model is trained on (`data.describe_data`), and how its features were prepared."""


@contextmanager
def prepared_run(
    config: Config, graph: Graph | None, model: nn.Module | None, communicator: Communicator, display: Display
) -> Iterator[PreparedRun]:
    """Loads, builds and checks everything that a run needs, and writes nothing; the model is plain again at the end.

    Args:
        display: told which phase is under way.
    """
    prepared = _prepare(config, graph, model, communicator, display)
    try:
        yield prepared
    finally:
        prepared.session.detach()


def _prepare(
    config: Config, graph: Graph | None, model: nn.Module | None, communicator: Communicator, display: Display
) -> PreparedRun:
    training, source = config.training, config.data.source
    data: Graph | Store
    if graph is None:
        display.phase(f"Loading {source}")
        data = open_data(source, communicator.num_ranks, undirected=config.data.undirected)
    else:
        data = graph
    inputs = describe_data(data, source if graph is None else None)
    # Before anything is shared out: parts of different graphs do not fit together.
    check_agreement(communicator, {f"data.{key}": str(value) for key, value in inputs.items()})
    session = Session(data, parse_strategy(training.strategy), training.seed, communicator)
    # The session may replace it by one with features that are prepared.
    del data
    num_hops = config.model.num_hops if model is None else None
    name = model_name(config) if model is None else type(model).__name__
    if model is None:
        model = build_model(
            config.model, num_features=session.num_features, num_classes=session.num_classes, seed=training.seed
        )
    display.phase(_placing(session))
    run = ExpectedRun(model, training.epochs, takes_batches=bool(training.batch_size))
    placed = session.place(run, normalise=config.data.normalise_features)
    display.phase(f"Checking that {training.strategy} can train the model")
    session.check(placed)
    about = session.about
    logger.info(
        "%s: %s nodes, %s edges, %s features, %s classes. Split: %s. %s: %s parameters.",
        about.name,
        *map(format_count, (about.num_nodes, about.num_edges, about.num_features, about.num_classes)),
        describe_split(about),
        name,
        format_count(sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)),
    )
    warn_of_unused_weights(model, placed.shard)
    display.phase("Preparing the model and the first step")
    prepared = PreparedRun(
        session=session,
        optimizer=build_optimizer(model.parameters(), training),
        batches=choose_batches(config, session, placed, num_hops=num_hops),
        evaluation=Evaluation(training.metric, placed.shard, communicator),
        inputs={**inputs, "normalise_features": session.normalised},
    )
    # Last, when nothing can be refused any more: a model of the caller's is left alone by a run that never began.
    session.attach(model, placed)
    return prepared


def _placing(session: Session) -> str:
    data, num_ranks = session.data, session.communicator.num_ranks
    if num_ranks == 1:
        return "Preparing the graph"
    if isinstance(data, Store):
        return f"Reading this rank's part of {num_ranks}, and finding neighbours on other ranks"
    how = getattr(session.strategy, "partitioner", "auto")
    return f"Dividing {format_count(data.num_nodes)} nodes among {num_ranks} ranks with the partitioner {how}"

"""Members: all that takes part in training, built from a configuration and checked before any file is written."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from laconic.attach import Attachment
from laconic.attach.forward import warn_of_unused_weights
from laconic.comm import Communicator
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement
from laconic.models import build_model
from laconic.store import Manifest, Store
from laconic.strategies import parse_strategy
from laconic.strategies.base import Strategy
from laconic.trainer.batches import Batches, choose_batches
from laconic.trainer.config import Config
from laconic.trainer.config_file import model_name
from laconic.trainer.data import (
    check_trainable,
    describe_data,
    describe_split,
    open_data,
    prepare_features,
    prepare_rows,
)
from laconic.trainer.evaluate import Evaluation
from laconic.trainer.optimizers import build_optimizer
from laconic.trainer.progress import Display
from laconic.units import format_count

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class Members:
    """The data, the model, and who trains and scores it."""

    data: Graph | Manifest
    """The graph, or what is known of it where ranks hold it together."""
    communicator: Communicator
    strategy: Strategy
    attachment: Attachment
    optimizer: Optimizer
    batches: Batches
    evaluation: Evaluation
    inputs: dict[str, Any]
    """What the model is trained on (`data.describe_data`), and how its features were prepared."""


@contextmanager
def prepared_members(
    config: Config, graph: Graph | None, model: nn.Module | None, communicator: Communicator, display: Display
) -> Iterator[Members]:
    """Loads, builds and checks everything that a run needs, and writes nothing; the model is plain again at the end.

    Args:
        display: told which phase is under way.
    """
    members = _build_members(config, graph, model, communicator, display)
    try:
        yield members
    finally:
        members.attachment.detach()


def _build_members(
    config: Config, graph: Graph | None, model: nn.Module | None, communicator: Communicator, display: Display
) -> Members:
    training = config.training
    strategy = parse_strategy(training.strategy)
    source, undirected = config.data.source, config.data.undirected
    data: Graph | Store
    if graph is None:
        display.phase(f"Loading {source}")
        data = open_data(source, communicator.num_ranks, undirected=undirected)
    else:
        data = graph
    inputs = describe_data(data, source if graph is None else None)
    # Before anything is shared out: parts of different graphs do not fit together.
    check_agreement(communicator, {f"data.{key}": str(value) for key, value in inputs.items()})
    about = data if isinstance(data, Graph) else data.manifest
    num_hops = config.model.num_hops if model is None else None
    name = model_name(config) if model is None else type(model).__name__
    if model is None:
        model = build_model(
            config.model, num_features=about.num_features, num_classes=about.num_classes, seed=training.seed
        )
    strategy.expect_model(model)
    normalise = config.data.normalise_features
    display.phase(_placing(data, strategy, communicator.num_ranks))
    if isinstance(data, Graph):
        data, normalised = prepare_features(data, normalise)
        about = data
        shard = strategy.place(data, communicator)
    else:
        shard, normalised = prepare_features(strategy.place(data, communicator), normalise, communicator)
        shard = strategy.with_features(shard.x, partial(prepare_rows, normalised=normalised))
    check_trainable(about.name, strategy.num_train)
    display.phase(f"Checking that {training.strategy} can train the model")
    strategy.check(model, shard)
    strategy.expect_epochs(training.epochs)
    logger.info(
        "%s: %s nodes, %s edges, %s features, %s classes. Split: %s. %s: %s parameters.",
        about.name,
        *map(format_count, (about.num_nodes, about.num_edges, about.num_features, about.num_classes)),
        describe_split(about),
        name,
        format_count(sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)),
    )
    warn_of_unused_weights(model, shard)
    display.phase("Preparing the model and the first step")
    return Members(
        data=about,
        communicator=communicator,
        strategy=strategy,
        optimizer=build_optimizer(model.parameters(), training),
        batches=choose_batches(config, data, shard, strategy, communicator, num_hops=num_hops),
        evaluation=Evaluation(training.metric, shard, communicator),
        inputs={**inputs, "normalise_features": normalised},
        # Last, when nothing can be refused any more: a model of the caller's is left alone by a run that never began.
        attachment=strategy.attach(model, shard, seed=training.seed),
    )


def _placing(data: Graph | Store, strategy: Strategy, num_ranks: int) -> str:
    if num_ranks == 1:
        return "Preparing the graph"
    if isinstance(data, Store):
        return f"Reading this rank's part of {num_ranks}, and finding neighbours on other ranks"
    how = getattr(strategy, "partitioner", "auto")
    return f"Dividing {format_count(data.num_nodes)} nodes among {num_ranks} ranks with the partitioner {how}"

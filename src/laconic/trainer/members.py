"""Members: all that takes part in training, built from a configuration and checked before any file is written."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from laconic.attach import Attachment
from laconic.graph import Graph, Shard
from laconic.models import build_model
from laconic.strategies import Strategy, parse_strategy
from laconic.trainer.batches import Batches, choose_batches
from laconic.trainer.config import Config
from laconic.trainer.config_file import model_name
from laconic.trainer.data import describe_graph, load_graph, prepare_features
from laconic.trainer.evaluate import Evaluation
from laconic.trainer.forward import warn_of_unused_weights
from laconic.trainer.optimizers import build_optimizer
from laconic.units import format_count

logger = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class Members:
    """The graph, the model, and who trains and scores it."""

    graph: Graph
    strategy: Strategy
    attachment: Attachment
    optimizer: Optimizer
    batches: Batches
    evaluation: Evaluation
    inputs: dict[str, Any]
    """What the model is trained on (`data.describe_graph`), and how its features were prepared."""


@contextmanager
def prepared_members(config: Config, graph: Graph | None, model: nn.Module | None) -> Iterator[Members]:
    """Loads, builds and checks everything that a run needs, and writes nothing; the model is plain again at the end."""
    members = _build_members(config, graph, model)
    try:
        yield members
    finally:
        members.attachment.detach()


def _build_members(config: Config, graph: Graph | None, model: nn.Module | None) -> Members:
    training = config.training
    strategy = parse_strategy(training.strategy)
    graph = load_graph(config.data.source) if graph is None else graph
    inputs = describe_graph(graph)
    graph, normalised = prepare_features(graph, config.data.normalise_features)
    shard = Shard.whole(graph)
    is_own_model = model is not None
    if model is None:
        model = build_model(
            config.model, num_features=graph.num_features, num_classes=graph.num_classes, seed=training.seed
        )
    strategy.check(model, shard)
    logger.info(
        "%s: %s nodes, %s edges, %s features, %s classes. %s: %s parameters.",
        graph.name,
        *map(format_count, (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes)),
        type(model).__name__ if is_own_model else model_name(config),
        format_count(sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)),
    )
    warn_of_unused_weights(model, shard)
    return Members(
        graph=graph,
        strategy=strategy,
        optimizer=build_optimizer(model.parameters(), training),
        batches=choose_batches(config, graph, shard, is_own_model=is_own_model),
        evaluation=Evaluation(training.metric, shard),
        inputs={**inputs, "normalise_features": normalised},
        # Last, when nothing can be refused any more: a model of the caller's is left alone by a run that never began.
        attachment=strategy.attach(model, shard, seed=training.seed),
    )

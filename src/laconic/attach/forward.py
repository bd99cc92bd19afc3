"""How a model is called on a shard: with the edge weights, where the graph has them and the model takes them."""

import inspect
import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor, nn

from laconic.graph import Shard

logger = logging.getLogger(__name__)


def run_model(model: nn.Module, shard: Shard) -> Tensor:
    """Returns the model's outputs for every row of `shard`."""
    if shard.edge_weight is not None and takes_edge_weight(model):
        out: Tensor = model(shard.x, shard.edge_index, edge_weight=shard.edge_weight)
    else:
        out = model(shard.x, shard.edge_index)
    return out


def takes_edge_weight(model: nn.Module) -> bool:
    """Whether `model` can be called with edge_weight and its convolutions use it."""
    # PyG's ready-made models have the argument in any case, and raise unless this says yes.
    said = getattr(model, "supports_edge_weight", None)
    if said is not None:
        return bool(said)
    # Of the class, because an attached model has a forward of its own in front.
    return "edge_weight" in inspect.signature(type(model).forward).parameters


def warn_of_unused_weights(model: nn.Module, shard: Shard) -> None:
    """Logs a warning when the graph's edge weights have no part in what `model` computes."""
    if shard.edge_weight is not None and not takes_edge_weight(model):
        logger.warning(
            "The graph has edge weights, but %s does not take them: they are not used. "
            "Models that use them: gcn, sgc, appnp.",
            type(model).__name__,
        )


@cache
def signature_of(forward: Callable[..., Any]) -> inspect.Signature:
    """Returns the arguments that a class's forward takes; asked in every step, so it is kept."""
    return inspect.signature(forward)

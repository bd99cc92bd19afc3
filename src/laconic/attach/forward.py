"""How a model is called on a shard: with the edge weights, where the graph has them and the model takes them."""

import inspect
import logging
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import Sequential

from laconic.errors import UnsupportedModelError
from laconic.graph import Shard

logger = logging.getLogger(__name__)


def run_model(model: nn.Module, shard: Shard) -> Tensor:
    """Returns the model's outputs for every row of `shard`."""
    is_weighted = shard.edge_weight is not None and takes_edge_weight(model)
    if is_weighted or needs_edge_weight(model):
        out = model(shard.x, shard.edge_index, edge_weight=shard.edge_weight)
    else:
        out = model(shard.x, shard.edge_index)
    if not isinstance(out, Tensor):
        raise UnsupportedModelError(
            f"{type(model).__name__} should return one tensor with a row per node; it returned a {type(out).__name__}. "
            f"Return the outputs alone, and keep anything else as an attribute (self.hidden = hidden)."
        )
    return out


def takes_edge_weight(model: nn.Module) -> bool:
    """Whether `model` can be called with edge_weight and its convolutions use it."""
    # PyG's ready-made models have the argument in any case, and raise unless this says yes.
    said = getattr(model, "supports_edge_weight", None)
    if said is not None:
        return bool(said)
    return "edge_weight" in _arguments_of(model)


def needs_edge_weight(model: nn.Module) -> bool:
    """Whether `model` cannot be called without edge_weight, which is None on a graph that has none."""
    return _arguments_of(model).get("edge_weight", False)


def plain_forward(module: Any) -> Callable[..., Any]:
    """Returns the function that `attach` was set over, to be called with `module` first.

    That of the class; or one of the instance itself, as PyG's Sequential has it: its class has that of another one.
    """
    own = module.__dict__.get("laconic_plain", module.__dict__.get("forward"))
    function: Callable[..., Any] = getattr(own, "__func__", type(module).forward)
    return function


def _arguments_of(model: nn.Module) -> Mapping[str, bool]:
    """Returns the names of what a model is called with, and whether it cannot be called without."""
    if isinstance(model, Sequential):
        # Its forward function may take anything; what it is called with was said when it was built.
        return dict.fromkeys(model.signature.param_dict, True)
    parameters = signature_of(plain_forward(model)).parameters
    return {name: parameter.default is parameter.empty for name, parameter in parameters.items()}


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
    """Returns the arguments that a forward function takes; asked in every step, so it is kept."""
    return inspect.signature(forward)

"""Embeddings: the hidden rows of a trained model for every node, by node id.

By default they are the rows that enter the model's last layer: its last convolution or linear layer that has weights
of its own, in the order of the forward pass. In a two-layer GCN these are the hidden values after the activation. A
layer named otherwise gives its outputs, such as "convs.0": those of the first convolution, before the activation.
"""

from dataclasses import dataclass
from typing import Any, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import Linear, MessagePassing

from laconic.comm import Communicator
from laconic.errors import ConfigError
from laconic.graph import Graph, Shard
from laconic.session.by_node import gather_by_node
from laconic.session.evaluate import whole_graph_logits
from laconic.specs import unknown_name
from laconic.store import Store

# Shapes: N nodes, D values of an embedding


@final
@dataclass(frozen=True, eq=False)
class Embeddings:
    """Rows of one layer for every node.

    Args:
        node_ids: the nodes' ids in their data, numbers or text, in the order of their numbers, (N,).
        vectors: the rows, (N, D).
        layer: what they are, such as "input of convs.1" or "output of convs.0".
    """

    node_ids: NDArray[Any]
    vectors: NDArray[Any]
    layer: str


def embeddings(
    model: nn.Module, data: Graph | Store, shard: Shard, communicator: Communicator, layer: str | None = None
) -> Embeddings:
    """Returns the embeddings of all nodes on rank 0, and none on others; all ranks call it together.

    Args:
        model: attached to `shard`.
        data: what the shard was made of.
        layer: a submodule, whose outputs are returned; by default the inputs of the last layer.
    """
    watched = _last_layers(model) if layer is None else {layer: _find(model, layer)}
    # The last one that is called stays.
    seen: list[tuple[str, Any]] = []
    hooks = []
    for name, module in watched.items():

        def note_input(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], name: str = name) -> None:
            first = given[0] if given else named.get("x", next(iter(named.values()), None))
            seen[:] = [(f"input of {name}", first)]

        def note_output(module: nn.Module, given: tuple[Any, ...], out: Any, name: str = name) -> None:
            seen[:] = [(f"output of {name}", out)]

        if layer is None:
            hooks.append(module.register_forward_pre_hook(note_input, with_kwargs=True))
        else:
            hooks.append(module.register_forward_hook(note_output))
    try:
        whole_graph_logits(model, shard)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        what = "a convolution or linear layer with weights" if layer is None else f"the layer {layer!r}"
        raise ConfigError(
            f"{type(model).__name__} does not call {what} in its forward pass. Name one that it calls: "
            f"session.embeddings(layer=...). {_choices(model)}"
        )
    ((what, value),) = seen
    rows = _rows_of(value, what, shard)
    node_ids, rows = gather_by_node(communicator, data, shard, rows)
    vectors = rows.float() if rows.dtype == torch.bfloat16 else rows
    return Embeddings(node_ids, vectors.numpy(), what)


def _last_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the layers of which the last one may be called last, by name; not what they are made of."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        is_part = any(name.startswith(f"{outer}.") for outer in found)
        is_layer = isinstance(module, nn.Linear | Linear | MessagePassing) and any(True for _ in module.parameters())
        if name and is_layer and not is_part:
            found[name] = module
    return found


def _find(model: nn.Module, layer: str) -> nn.Module:
    modules: dict[str, nn.Module] = {name: module for name, module in model.named_modules() if name}
    if layer not in modules:
        raise ConfigError(unknown_name(layer, modules, family=f"layer of {type(model).__name__}"))
    return modules[layer]


def _rows_of(value: Any, what: str, shard: Shard) -> Tensor:
    if isinstance(value, tuple) and value:
        # Rows of sources and destinations, as bipartite convolutions take them; outputs come first.
        value = value[-1] if what.startswith("input") else value[0]
    # Rows of other ranks that are computed here too stand behind the own ones.
    num_rows = len(value) if isinstance(value, Tensor) and value.dim() > 0 else -1
    if not isinstance(value, Tensor) or not shard.num_owned <= num_rows <= shard.num_rows:
        came = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ConfigError(
            f"Embeddings are one row for each of the {shard.num_owned} nodes here, but the {what} is {came}. Name a "
            f"layer that gives rows of nodes."
        )
    return value[: shard.num_owned].detach()


def _choices(model: nn.Module) -> str:
    return f"Choices: {', '.join(name for name, _ in model.named_modules() if name) or 'none'}."

"""PyG's own message passing where ranks share the graph: rows of other ranks are appended before messages are made.

For convolutions without a kernel. Each `propagate` and `edge_updater` of theirs gets, for what messages read of their
sources, owned rows and halo rows; for what they read of their destinations, the owned rows; so any number of
propagations in one layer is right, and the output has owned rows only.
"""

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from laconic.attach.checkpointing import refuse_second_run
from laconic.attach.forward import plain_forward, signature_of
from laconic.attach.scope import Scope
from laconic.errors import UnsupportedModelError
from laconic.graph import Shard

NOT_ROWS = "its x is not one row of numbers per node"


def share_rows(conv: MessagePassing) -> None:
    """Makes `conv`, which runs PyG's code, see the rows of other ranks."""
    conv.register_propagate_forward_pre_hook(_append_rows)
    conv.register_edge_update_forward_pre_hook(_append_rows)


def is_sharer(hook: object) -> bool:
    """Whether a hook on a convolution is the one set here."""
    return hook is _append_rows


def shared_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What stands for the `forward` of a convolution without a kernel."""
    scope: Scope = self.laconic_scope
    plain = plain_forward(self)
    if scope.is_elsewhere:
        return plain(self, *args, **kwargs)
    if scope.runs_once:
        refuse_second_run(type(self).__name__)
    given = signature_of(plain).bind(self, *args, **kwargs).arguments
    values = flat_values(args, kwargs)
    # Whatever a user's own convolution calls it: `adj` is as good a name.
    edges = [given["edge_index"]] if "edge_index" in given else values
    if not any(scope.owns_edges(value) for value in edges):
        refuse_call(self, "it was called with an edge_index other than the shard's own")
    scope.enter_layer(self)
    scope.layer_inputs = values
    try:
        return plain(self, *args, **kwargs)
    finally:
        scope.layer_inputs = ()


def refuse_call(conv: Any, reason: str) -> None:
    """Raises: what one machine does with PyG's code would be wrong where ranks share the graph."""
    if reason == NOT_ROWS:
        reason += ". Rows that the model keeps for all nodes, as an nn.Embedding, belong into the graph's features"
    raise UnsupportedModelError(
        f"{type(conv).__name__} cannot run over several ranks: {reason}. Call the model with shard.x and "
        f"shard.edge_index themselves (and shard.edge_weight or none), and hand that edge_index on to each convolution "
        f"as it is; self-loops and other edges are added to the graph before laconic.join. Another graph it takes in "
        f"evaluation: model.eval(), then model(x, edge_index) of the whole graph. Or use the strategy single."
    )


def is_of_another_graph(shard: Shard, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_part: bool = False) -> bool:
    """Whether a model is called on a graph of its own: with none of the shard's tensors, and all rows that edges name.

    Every rank then computes all of it.

    Args:
        is_part: the shard lacks edges of its rows, so that a copy of it is no graph of its own.
    """
    tensors = [value for value in flat_values(args, kwargs) if isinstance(value, Tensor)]
    if any(tensor is own for tensor in tensors for own in (shard.x, shard.edge_index, shard.edge_weight)):
        return False
    rows = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    edges = next((tensor for tensor in tensors if tensor.dtype == torch.int64 and tensor.dim() == 2), None)
    if rows is None or edges is None or rows.dim() != 2 or edges.shape[0] != 2:
        return False
    if (is_part or len(shard.y) < shard.num_rows) and torch.equal(edges, shard.edge_index):
        return False
    # Edges of a shard with owned rows alone go beyond them: those numbers are rows of other ranks.
    return edges.numel() == 0 or int(edges.max()) < len(rows)


def flat_values(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Returns what a layer was called with, pairs (x, x) taken apart."""
    given = [*args, *kwargs.values()]
    return tuple(part for value in given for part in (value if isinstance(value, tuple | list) else (value,)))


def _append_rows(conv: Any, inputs: tuple[Any, Any, dict[str, Any]]) -> tuple[Any, Any, dict[str, Any]]:
    edge_index, _, values = inputs
    scope: Scope = conv.laconic_scope
    if scope.is_elsewhere:
        return inputs
    num_rows = scope.shard.num_rows
    read = {*conv._user_args, *getattr(conv, "_edge_user_args", ())}
    shared: dict[str, Any] = {}
    for name, value in values.items():
        of_sources, of_rows = value if isinstance(value, tuple | list) and len(value) == 2 else (value, value)
        is_rows = isinstance(of_sources, Tensor) and of_sources.dim() > 0 and of_sources.shape[0] == num_rows
        if is_rows and f"{name}_j" in read:
            if scope.on_changed_rows is not None and all(of_sources is not given for given in scope.layer_inputs):
                scope.on_changed_rows(conv)
            shared[name] = (scope.aggregator.sources(of_sources), of_rows)
        elif is_rows and f"{name}_i" in read:
            shared[name] = (None, of_rows)
        else:
            shared[name] = value
    return edge_index, (scope.shard.num_sources, num_rows), shared

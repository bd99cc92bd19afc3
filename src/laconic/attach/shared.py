"""PyG's own message passing where ranks share the graph: rows of other ranks are appended before messages are made.

For convolutions without a kernel. Each `propagate` and `edge_updater` of theirs gets, for what messages read of their
sources, owned rows and halo rows; for what they read of their destinations, the owned rows; so any number of
propagations in one layer is right, and the output has owned rows only.
"""

from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing

from laconic.attach.checkpointing import refuse_second_run
from laconic.attach.forward import signature_of
from laconic.attach.scope import Scope
from laconic.errors import UnsupportedModelError


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
    if scope.runs_once:
        refuse_second_run(type(self).__name__)
    given = signature_of(type(self).forward).bind(self, *args, **kwargs).arguments
    if not scope.owns_edges(given.get("edge_index")):
        refuse_call(self, "it was called with an edge_index other than the shard's own")
    scope.aggregator.enter_layer(self.laconic_layer)
    scope.layer_input = given.get("x")
    try:
        return type(self).forward(self, *args, **kwargs)
    finally:
        scope.layer_input = None


def refuse_call(conv: Any, reason: str) -> None:
    """Raises: what one machine does with PyG's code would be wrong where ranks share the graph."""
    raise UnsupportedModelError(
        f"{type(conv).__name__} cannot run over several ranks: {reason}. Call the model with shard.x and "
        f"shard.edge_index themselves (and shard.edge_weight or none), or use the strategy single."
    )


def _append_rows(conv: Any, inputs: tuple[Any, Any, dict[str, Any]]) -> tuple[Any, Any, dict[str, Any]]:
    edge_index, _, values = inputs
    scope: Scope = conv.laconic_scope
    num_rows = scope.shard.num_rows
    read = {*conv._user_args, *getattr(conv, "_edge_user_args", ())}
    shared: dict[str, Any] = {}
    for name, value in values.items():
        of_sources, of_rows = value if isinstance(value, tuple | list) and len(value) == 2 else (value, value)
        is_rows = isinstance(of_sources, Tensor) and of_sources.dim() > 0 and of_sources.shape[0] == num_rows
        if is_rows and f"{name}_j" in read:
            if scope.on_changed_rows is not None and of_sources is not scope.layer_input:
                scope.on_changed_rows(conv)
            shared[name] = (scope.aggregator.sources(of_sources), of_rows)
        elif is_rows and f"{name}_i" in read:
            shared[name] = (None, of_rows)
        else:
            shared[name] = value
    return edge_index, (scope.shard.num_sources, num_rows), shared

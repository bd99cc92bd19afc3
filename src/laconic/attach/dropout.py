"""Keyed dropout under an unchanged model: F.dropout and nn.Dropout draw from (seed, epoch, step, call, node or edge).

A torch function mode sees every dropout call of the forward pass. Rows of node tensors are keyed by node, those of edge
tensors (inside PyG's message passing) by their end points, so that the masks are the same on any number of ranks.
"""

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import MessagePassing

from laconic.attach.checkpointing import is_run_twice, refuse_old_checkpoint
from laconic.attach.scope import Scope
from laconic.graph.operators.dropout import drop_edges, drop_nodes

# torch.dropout has names of its own for the arguments of torch.nn.functional.dropout.
_NAMES = {"train": "training"}


@final
class KeyedDropout(TorchFunctionMode):
    """While active, replaces dropout by the keyed one of `scope`; every other function runs as it is."""

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self._scope = scope

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return self._drop(*args, **kwargs)
        if func is torch.dropout:
            return self._drop(*args, **{_NAMES.get(name, name): value for name, value in kwargs.items()})
        return func(*args, **kwargs)

    # The arguments are those of torch.nn.functional.dropout, under their names.
    def _drop(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        if not training or p == 0.0:
            return input
        if is_run_twice(self._scope.grad_enabled):
            refuse_old_checkpoint()
            return F.dropout(input, p, training, inplace)
        out = self._masked(input, p)
        return input.copy_(out) if inplace else out

    def _masked(self, x: Tensor, probability: float) -> Tensor:
        scope = self._scope
        key = scope.next_key()
        num_rows = x.shape[0] if x.dim() else 0
        if scope.edge_ends and num_rows == scope.edge_ends[-1].shape[1]:
            ids = scope.shard.source_ids
            sources, destinations = scope.edge_ends[-1]
            return drop_edges(x, probability, key, ids[sources], ids[destinations])
        if scope.shard.hop_of(num_rows) is not None:
            return drop_nodes(x, probability, key, scope.shard.node_ids[:num_rows])
        # Neither a row per node nor one per edge: only the position is left to go by.
        rows = x if x.dim() else x.unsqueeze(0)
        return drop_nodes(rows, probability, key, torch.arange(rows.shape[0])).view(x.shape)


def watch_edges(conv: MessagePassing) -> None:
    """Lets keyed dropout know the edges while `conv` runs PyG's own edge update or message function."""
    conv.register_edge_update_forward_pre_hook(_enter_edges)
    conv.register_edge_update_forward_hook(_leave_edges)
    conv.register_propagate_forward_pre_hook(_enter_edges)
    conv.register_propagate_forward_hook(_leave_edges)


def is_watcher(hook: object) -> bool:
    """Whether a hook on a convolution is one of ours."""
    return hook is _enter_edges or hook is _leave_edges


def _enter_edges(conv: Any, inputs: tuple[Any, ...]) -> None:
    edge_index = inputs[0]
    is_plain = isinstance(edge_index, Tensor) and edge_index.layout == torch.strided
    within = is_plain and edge_index.numel() > 0 and int(edge_index.max()) < conv.laconic_scope.shard.num_sources
    ends = edge_index if within else torch.empty(2, 0, dtype=torch.int64)
    conv.laconic_scope.edge_ends.append(ends)


def _leave_edges(conv: Any, inputs: tuple[Any, ...], output: Any) -> None:
    conv.laconic_scope.edge_ends.pop()

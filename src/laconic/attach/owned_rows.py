"""Shards with rows behind the owned ones: what a model may be called with, and which rows its outputs have.

A rank owns n rows and may hold m - n rows of other ranks behind them, as context: x is (m, F), and labels, masks and
outputs have n rows. In training a model computes all m rows, and its outputs (m, C) are cut to (n, C).

The context of `gradient_only` and `grappa` is historical or incomplete, so evaluation does without it. It is handed the
shard of the epoch, as training is, and works on the rows as they were placed: the same n rows, with all of their edges.
"""

from collections.abc import Iterable
from typing import Any, NoReturn

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from laconic.errors import ConfigError, UnsupportedModelError
from laconic.graph import Shard


def owned_rows(shard: Shard, out: Any) -> Any:
    """Returns a model's outputs without the rows behind the owned ones."""
    num_rows = len(shard.y)
    if num_rows == shard.num_rows:
        return out
    return tree_map_only(Tensor, lambda tensor: tensor[:num_rows] if _has_context(shard, tensor) else tensor, out)


def placed_inputs(shard: Shard, placed: Shard, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what an evaluation on the shard of an epoch was called with, for the rows as they were placed."""
    if all(value is not shard.edge_index for value in tree_leaves((args, kwargs))):
        return args, kwargs
    same = {id(shard.x): placed.x, id(shard.edge_index): placed.edge_index, id(shard.edge_weight): placed.edge_weight}

    def of_placed(tensor: Tensor) -> Any:
        if id(tensor) in same:
            return same[id(tensor)]
        return tensor[: len(shard.y)] if _has_context(shard, tensor) else tensor

    inputs: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(Tensor, of_placed, (args, kwargs))
    return inputs


def check_epoch_inputs(shard: Shard, given: tuple[object, ...]) -> None:
    """Raises UnsupportedModelError unless a model is trained on the tensors of the epoch's shard themselves."""
    own = {id(tensor) for tensor in (shard.x, shard.edge_index, shard.edge_weight, None)}
    if len(given) < 2 or any(id(value) not in own for value in given):
        raise UnsupportedModelError(
            "In training this strategy knows neighbours on other ranks by the rows and edges of the epoch's shard. "
            "Take that shard (for epoch, shard in session.epochs(100)), and call the model with its shard.x and "
            "shard.edge_index themselves (and shard.edge_weight or none), and nothing else."
        )


def refuse_changed_epoch() -> NoReturn:
    """Raises ConfigError: a shard was changed in place in its epoch."""
    raise ConfigError(
        "Features or edges of the epoch's shard were changed in place after other ranks had taken copies of them. "
        "Change them before the model is attached."
    )


def refuse_input_gradients(shard: Shard, given: Iterable[object]) -> None:
    """Raises UnsupportedModelError where gradients of rows are asked for whose copies lie on other ranks."""
    for value in given:
        if isinstance(value, Tensor) and value.requires_grad and _has_context(shard, value):
            raise UnsupportedModelError(
                "Gradients of the input rows are asked for, and rows of other ranks are computed here too, whose "
                "gradients would not come back to their owners. Use exchange(reach=0)."
            )


def _has_context(shard: Shard, tensor: Tensor) -> bool:
    """Whether a tensor has rows of nodes behind the owned ones."""
    return tensor.dim() > 0 and len(tensor) > len(shard.y) and shard.hop_of(len(tensor)) is not None

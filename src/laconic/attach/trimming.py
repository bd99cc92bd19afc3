"""Rows of several hops under an unchanged model: operations that meet tensors of different hops get the inner rows.

Where rows of other ranks are computed here too, a convolution makes rows within j - 1 hops of rows within j hops. A
skip connection or jumping knowledge then meets n_j rows and n_{j-1}: the first n_{j-1} rows are the same nodes, and no
layer after it needs the others.
"""

from collections.abc import Callable, Iterable
from typing import Any, final

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from laconic.graph import Shard


@final
class TrimmedRows(TorchFunctionMode):
    """While active, an operation that fails on rows of different hops is tried again with the rows of the innermost.

    Nothing else changes: an operation that works, works as it is. Torch adds a tensor of one row to one of many, so a
    shard with hops owns two rows at least.
    """

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        self._shard = shard

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except (RuntimeError, IndexError):
            trimmed = self._trimmed(args, kwargs)
            if trimmed is None:
                raise
            args, kwargs = trimmed
            return func(*args, **kwargs)

    def _trimmed(self, args: tuple[Any, ...], kwargs: Any) -> tuple[tuple[Any, ...], Any] | None:
        counts: set[int] = set()

        def note(tensor: Tensor) -> Tensor:
            if self._has_rows(tensor):
                counts.add(len(tensor))
            return tensor

        tree_map_only(Tensor, note, (args, kwargs))
        if len(counts) < 2:
            return None
        num_rows = min(counts)
        trimmed: tuple[tuple[Any, ...], Any] = tree_map_only(
            Tensor, lambda tensor: tensor[:num_rows] if self._has_rows(tensor) else tensor, (args, kwargs)
        )
        return trimmed

    def _has_rows(self, tensor: Tensor) -> bool:
        return tensor.dim() > 0 and self._shard.hop_of(len(tensor)) is not None

"""What a rank holds, counted: to compare with what a plan says it will."""

from typing import Any

import numpy as np
import torch


def bytes_within(root: object) -> int:
    """Returns the bytes of all tensors and arrays that can be reached from an object of ours, each counted once."""
    seen: set[int] = set()
    stores: dict[int, int] = {}
    waiting: list[Any] = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or callable(item):
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            stores[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, np.ndarray):
            stores[item.ctypes.data] = max(stores.get(item.ctypes.data, 0), item.nbytes)
        elif isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
        elif type(item).__module__.startswith("laconic"):
            waiting += getattr(item, "__dict__", {}).values()
    return sum(stores.values())

"""Train, val and test masks: drawn at random by shares, or from lists of rows."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.errors import ConfigError, DataError

SPLITS = ("train", "val", "test")


def check_shares(train: float, val: float, *, what: str) -> None:
    """Raises ConfigError unless the shares leave something for each of train, val and test."""
    if not (train > 0 and val > 0 and train + val < 1):
        raise ConfigError(
            f"{what}: train and val are shares of the nodes, both above 0 and together below 1 (test is the rest); "
            f"got train={train} and val={val}."
        )


def random_masks(num_nodes: int, train: float, val: float, rng: np.random.Generator) -> dict[str, Tensor]:
    """Returns disjoint masks by name (train_mask, ...) that cover all nodes, each with one node at least."""
    if num_nodes < len(SPLITS):
        raise DataError(f"A random split needs at least {len(SPLITS)} nodes, one for each of {', '.join(SPLITS)}.")
    num_train = min(max(round(train * num_nodes), 1), num_nodes - 2)
    num_val = min(max(round(val * num_nodes), 1), num_nodes - num_train - 1)
    order = rng.permutation(num_nodes)
    return masks_of_rows(np.split(order, [num_train, num_train + num_val]), num_nodes)


def masks_of_rows(rows_of_split: list[NDArray[np.int64]], num_nodes: int) -> dict[str, Tensor]:
    """Returns the masks of three lists of rows, in the order train, val, test."""
    masks = {}
    for split, rows in zip(SPLITS, rows_of_split, strict=True):
        mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[torch.from_numpy(rows)] = True
        masks[f"{split}_mask"] = mask
    return masks

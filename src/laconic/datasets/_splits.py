"""Train, val and test masks: drawn at random by shares, or from lists of rows."""

import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

SPLITS = ("train", "val", "test")


def check_shares(train: float, val: float, *, what: str) -> None:
    """Raises ConfigError unless the shares leave something for each of train, val and test."""
    if not (train > 0 and val > 0 and train + val < 1):
        raise ConfigError(
            f"{what}: train and val are shares of the nodes, both above 0 and together below 1 (test is the rest); "
            f"got train={train} and val={val}."
        )


def random_masks(
    num_nodes: int, train: float, val: float, rng: np.random.Generator, *, among: NDArray[np.int64] | None = None
) -> dict[str, Tensor]:
    """Returns disjoint masks by name (train_mask, ...) that cover the rows `among` (all), each with one at least."""
    rows = np.arange(num_nodes) if among is None else among
    if len(rows) < len(SPLITS):
        raise DataError(
            f"A random split needs at least {len(SPLITS)} nodes with a label, one for each of {', '.join(SPLITS)}; "
            f"there are {len(rows)}."
        )
    num_train = min(max(round(train * len(rows)), 1), len(rows) - 2)
    num_val = min(max(round(val * len(rows)), 1), len(rows) - num_train - 1)
    return masks_of_rows(np.split(rng.permutation(rows), [num_train, num_train + num_val]), num_nodes)


def labelled_masks(y: Tensor, train: float, val: float, seed: int, *, where: str) -> dict[str, Any]:
    """Returns the fields of a Graph for a random split of the nodes that have a label, and says so in the log.

    Args:
        where: the data that came without a split.
    """
    check_shares(train, val, what=where)
    has_label = (y >= 0).numpy() if y.dim() == 1 else np.isfinite(y.numpy()).all(axis=1)
    logger.info(
        "%s has no split: its labelled nodes are divided at random, %.0f%% train, %.0f%% val, %.0f%% test (seed %d).",
        where,
        100 * train,
        100 * val,
        100 * (1 - train - val),
        seed,
    )
    masks = random_masks(len(y), train, val, np.random.default_rng(seed), among=np.flatnonzero(has_label))
    return {**masks, "split_origin": random_origin(seed)}


def random_origin(seed: int) -> str:
    """Returns what `Graph.split_origin` says of a random split."""
    return f"random, seed {seed}"


def masks_of_rows(rows_of_split: list[NDArray[np.int64]], num_nodes: int) -> dict[str, Tensor]:
    """Returns the masks of three lists of rows, in the order train, val, test."""
    masks = {}
    for split, rows in zip(SPLITS, rows_of_split, strict=True):
        mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[torch.from_numpy(rows)] = True
        masks[f"{split}_mask"] = mask
    return masks

"""What each training row's loss is multiplied by, so that gradients, summed over ranks, are the combination chosen.

With g_v the gradient of row v's loss, w_v its weight, n_k the training rows of rank k and K the ranks that have any:

    mean              (1 / K) sum_k (1 / n_k) sum_v w_v g_v      ranks count alike; what averaging local means gives
    ht                the same, over rho, the expected weight    of the full gradient's size (Horvitz and Thompson)
    self_normalised   sum_v w_v g_v / sum_v w_v, of all ranks    rows count alike; the scale of weights cancels
"""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from laconic.errors import ConfigError, DataError
from laconic.specs import unknown_name

Combination = Literal["mean", "ht", "self_normalised"]
COMBINATIONS: tuple[Combination, ...] = get_args(Combination)
Floats = NDArray[np.float64]
# Shapes: T training rows of this rank, P ranks


def row_factors(
    weights: Floats,
    *,
    combination: Combination,
    counts: NDArray[np.integer[Any]],
    rank: int,
    rank_totals: Floats,
    rho: float,
) -> Floats:
    """Returns the factor of each training row of this rank, (T,); none for a rank without training rows.

    What can be wrong is known to all ranks alike, so that they fail together or not at all.

    Args:
        weights: of this rank's training rows, (T,).
        combination: how ranks are combined.
        counts: training rows of each rank, (P,).
        rank: this rank.
        rank_totals: sum of the weights of each rank, (P,).
        rho: the expected weight, such as the mean over all training rows; only "ht" divides by it.
    """
    assert len(weights) == counts[rank], f"{len(weights)} weights for {counts[rank]} training rows"
    if combination not in COMBINATIONS:
        raise ConfigError(unknown_name(combination, COMBINATIONS, family="combination"))
    _check_that_something_counts(counts, rank_totals)
    if combination == "self_normalised":
        return weights / float(rank_totals.sum())
    if combination == "ht" and not rho > 0.0:
        raise ConfigError(
            f'Combination "ht" divides by the expected coverage, which should be more than 0; got {rho}. '
            f'Use "self_normalised", which needs none.'
        )
    scale = float(np.count_nonzero(counts) * counts[rank])
    return weights / (scale * rho if combination == "ht" else scale)


def _check_that_something_counts(counts: NDArray[np.integer[Any]], rank_totals: Floats) -> None:
    num_train = int(counts.sum())
    if num_train == 0:
        raise DataError("No rank has a training node. Give the graph a train_mask with at least one node in it.")
    if not np.isfinite(rank_totals).all() or (rank_totals < 0.0).any():
        raise DataError(
            f"Weights of training nodes should be finite and not negative; their sums by rank: {rank_totals.tolist()}."
        )
    if not rank_totals.any():
        raise ConfigError(
            f"All {num_train} training nodes have coverage 0 on all {len(counts)} ranks: no rank holds a whole path of "
            f"neighbours, and every gradient would be 0. Count fewer hops, hold more variable chunks, use fewer or "
            f"better connected parts, or set a shrinkage above 0."
        )

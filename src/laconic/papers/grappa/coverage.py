"""How much of a node's neighbourhood a rank holds, and the weights made of it.

A node's gradient comes from the neighbours that are held. Weighted by their share it is, on average over random chunks,
the same multiple of the full gradient for every node; unweighted, nodes with few neighbours would lose most.

Coverage goes with the mean over neighbours *held*. A sum divided by the degree in the whole graph is corrected already.
"""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.errors import ConfigError
from laconic.graph.adjacency import Adjacency
from laconic.graph.operators.linear import LinearOperator

Floats = NDArray[np.float64]
Numbers = NDArray[np.number[Any]]
# Shapes: N rows held, T training rows, P ranks

NUM_BINS = 10


def node_coverage(adjacency: Adjacency, degrees: Numbers, num_hops: int) -> Floats:
    """Returns the share of each node's walks that stay on edges held here, `num_hops` steps from node to source, (N,).

        C(0) = 1,   C(l)_v = (1 / d_v) sum over edges u -> v held here of C(l-1)_u,   1 where d_v = 0

    For one hop this is the share of its edges that is held.

    Args:
        adjacency: the edges among the rows held, (N, N).
        degrees: edges that arrive at each row in the whole graph, (N,).
        num_hops: how many layers of the model look at neighbours.
    """
    assert adjacency.num_rows == adjacency.num_columns == len(degrees), "coverage is of the rows held among themselves"
    assert np.all(adjacency.row_degrees <= degrees), "degrees are those in the whole graph"
    # Summed first and divided once: whole neighbourhoods then give 1 to the bit, and nothing exceeds it.
    total = LinearOperator(adjacency)
    divisor = np.where(degrees > 0, degrees, 1).astype(np.float64)
    coverage = np.ones(adjacency.num_rows)
    for _ in range(num_hops):
        covered = total.multiply(torch.from_numpy(coverage)[:, None]).numpy()[:, 0] / divisor
        coverage = np.where(degrees > 0, covered, 1.0)
    return coverage


def batch_coverage(weights: Floats) -> float:
    """Returns the one weight nearest to all `weights` in squares, their mean; 0 for none."""
    return float(weights.mean()) if len(weights) else 0.0


def shrink(weights: Floats, amount: float) -> Floats:
    """Returns weights drawn towards 1: unchanged with amount 0, all 1 with amount 1."""
    if not 0.0 <= amount <= 1.0:
        raise ConfigError(
            f'Shrinkage should be a number from 0 (none) to 1 (no correction left), or "auto"; got {amount}.'
        )
    return (1.0 - amount) * weights + amount


def effective_sample_size(weights: Floats) -> float:
    """Returns (sum w)^2 / sum w^2: how many equal weights would average as steadily; 0 where all are 0."""
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0.0 else 0.0


def auto_shrinkage(rank_weights: Floats, counts: Numbers) -> float:
    """Returns 1 - ESS / P over the ranks that have training rows: the more unequal their weights, the more shrinkage.

    Args:
        rank_weights: mean weight of each rank's training rows, (P,).
        counts: its number of training rows, (P,).
    """
    weights = rank_weights[counts > 0]
    if not weights.any():
        # Nothing is covered anywhere. Shrinking would make ones of that and hide it; `row_factors` refuses it.
        return 0.0
    return float(np.clip(1.0 - effective_sample_size(weights) / len(weights), 0.0, 1.0))


@final
@dataclass(frozen=True)
class CoverageSummary:
    """Weights of training rows in a few numbers, of one rank or of all.

    Args:
        count: how many rows.
        total, squares: sum of their weights, and of the squares.
        minimum: the smallest; 0 where there are none.
        histogram: rows in ten equal bins from 0 to 1; what lies outside is counted at the end that is near.
    """

    count: int
    total: float
    squares: float
    minimum: float
    histogram: tuple[int, ...]

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def effective_sample_size(self) -> float:
        return self.total**2 / self.squares if self.squares > 0.0 else 0.0

    def parts(self, rank: int = 0, num_ranks: int = 1) -> Floats:
        """Returns this as numbers that add up over ranks: `from_parts` of the sum is the summary of all, (13 + P,).

        Minima do not add up, so each rank has a place of its own for it.
        """
        minima = np.zeros(num_ranks)
        minima[rank] = self.minimum if self.count else np.inf
        return np.concatenate([[self.count, self.total, self.squares], self.histogram, minima])

    @staticmethod
    def from_parts(parts: Floats) -> "CoverageSummary":
        """Returns the summary of all ranks from the sum of their parts."""
        count, total, squares = parts[:3]
        histogram, minima = parts[3 : 3 + NUM_BINS], parts[3 + NUM_BINS :]
        return CoverageSummary(
            count=round(float(count)),
            total=float(total),
            squares=float(squares),
            minimum=float(minima.min()) if count else 0.0,
            histogram=tuple(round(float(rows)) for rows in histogram),
        )


def summarise(weights: Floats) -> CoverageSummary:
    """Returns the summary of one rank's weights, (T,)."""
    histogram, _ = np.histogram(np.clip(weights, 0.0, 1.0), bins=NUM_BINS, range=(0.0, 1.0))
    return CoverageSummary(
        count=len(weights),
        total=float(weights.sum()),
        squares=float(np.square(weights).sum()),
        minimum=float(weights.min()) if len(weights) else 0.0,
        histogram=tuple(int(rows) for rows in histogram),
    )

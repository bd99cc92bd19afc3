"""grid: a lattice of cells, whose labels are smooth regions and whose features are too noisy to tell them cell by cell.

Its cut and halo are known by hand, which makes it the graph for looking at partitions.

    grid(rows=300, columns=300, diagonals=True)
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from laconic.datasets._edges import edges_of_pairs
from laconic.datasets.base import Generator, check_fields, class_centres, finish
from laconic.graph import Graph

# Shapes: R rows, K columns of cells, N = R * K nodes, F features, C classes


@final
@dataclass(frozen=True)
class Grid(Generator):
    """A lattice of rows times columns, in smooth regions.

    Undirected; each cell is joined to those beside, above and below it. Unless shuffled, nodes stand row by row.

    Args:
        rows, columns: cells in either direction.
        diagonals: whether the four cells at the corners are neighbours too, as in minesweeper.
        classes, features: how many of each.
        smoothness: how far, in cells, a region reaches; larger means fewer borders.
        noise: deviation of each feature around the class's centre; centres are 1.4 apart.
    """

    rows: int = 50
    columns: int = 50
    diagonals: bool = False
    classes: int = 4
    features: int = 16
    smoothness: float = 3.0
    noise: float = 1.0

    def __post_init__(self) -> None:
        claims = {
            "rows is 1 or more": self.rows >= 1,
            "columns is 1 or more": self.columns >= 1,
            "rows times columns is from 3 to 2**31": 3 <= self.rows * self.columns <= 2**31,
            "classes is 1 or more": self.classes >= 1,
            "features is 1 or more": self.features >= 1,
            "smoothness is 0 or more": self.smoothness >= 0,
            "noise is 0 or more": self.noise >= 0,
        }
        check_fields(self, "grid", claims)

    def build(self) -> Graph:
        rng = np.random.default_rng(self.seed)
        num_nodes = self.rows * self.columns
        regions = [
            _smooth(rng.standard_normal((self.rows, self.columns)), self.smoothness) for _ in range(self.classes)
        ]
        y_N = np.stack(regions).argmax(axis=0).ravel()
        x_NF = class_centres(self.classes, self.features, rng)[y_N]
        x_NF = x_NF + self.noise * rng.standard_normal((num_nodes, self.features))
        edges = edges_of_pairs(self._pairs(), num_nodes)
        return finish(self, "grid", edges, x_NF, y_N, num_classes=self.classes, rng=rng)

    def _pairs(self) -> NDArray[np.int64]:
        cell_RK = np.arange(self.rows * self.columns).reshape(self.rows, self.columns)
        joined = [(cell_RK[:, :-1], cell_RK[:, 1:]), (cell_RK[:-1], cell_RK[1:])]
        if self.diagonals:
            joined += [(cell_RK[:-1, :-1], cell_RK[1:, 1:]), (cell_RK[:-1, 1:], cell_RK[1:, :-1])]
        return np.concatenate([(low * cell_RK.size + high).ravel() for low, high in joined])


def _smooth(field_RK: NDArray[np.float64], reach: float) -> NDArray[np.float64]:
    """Returns the field blurred by a Gaussian of deviation `reach`, wrapped around the borders, with deviation 1."""
    rate_R = np.fft.fftfreq(field_RK.shape[0])[:, None]
    rate_K = np.fft.rfftfreq(field_RK.shape[1])[None, :]
    damping = np.exp(-2 * (np.pi * reach) ** 2 * (rate_R**2 + rate_K**2))
    blurred = np.fft.irfft2(np.fft.rfft2(field_RK) * damping, s=field_RK.shape)
    # Far more reach than cells leaves a constant, which has no deviation to divide by.
    return np.asarray((blurred - blurred.mean()) / max(blurred.std(), 1e-12))

"""rmat: the recursive-matrix graph of the Graph500 benchmark: few hubs, many leaves, many nodes without any edge.

Its labels are planted: a random field on the nodes is averaged over neighbours twice, and the largest of its `classes`
components is the label. The features are the field before averaging, turned and with noise. So the label of a node
lies in its neighbourhood: two rounds of messages can find it, a model of x alone sees only the node's own share.

    rmat(scale=17, edge_factor=16)
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from laconic.datasets._edges import distinct_pairs, edges_of_pairs
from laconic.datasets.base import Generator, check_fields, class_centres, finish
from laconic.graph import Graph

_LARGEST_SCALE = 31
_NUM_ROUNDS = 2
# What a node keeps of its own value in a round, beside the mean of its neighbours' values.
_OWN_SHARE = 0.5

# Shapes: N nodes, M pairs, E edges, F features, C classes


@final
@dataclass(frozen=True)
class Rmat(Generator):
    """A power-law graph of 2**scale nodes (Graph500).

    Undirected, without loops or duplicates. Unless shuffled, hubs have low numbers.

    Args:
        scale: logarithm of the number of nodes, base 2.
        edge_factor: pairs drawn per node; fewer remain, because duplicates and loops are dropped.
        a, b, c: chances of the quadrants of the matrix; the last one has the rest. Graph500's unless given.
        features, classes: how many of each.
        noise: deviation of each feature around the planted field, whose own deviation is 1.
    """

    scale: int = 12
    edge_factor: int = 16
    a: float = 0.57
    b: float = 0.19
    c: float = 0.19
    features: int = 32
    classes: int = 8
    noise: float = 0.1

    def __post_init__(self) -> None:
        claims = {
            f"scale is from 2 to {_LARGEST_SCALE}": 2 <= self.scale <= _LARGEST_SCALE,
            "edge_factor is 0 or more": self.edge_factor >= 0,
            "b is 0 or more": self.b >= 0,
            "c is 0 or more": self.c >= 0,
            "a is 0 or more, and with b and c 1 at most": 0 <= self.a <= 1 + 1e-9 - self.b - self.c,
            "features is as many as classes, or more": self.features >= self.classes,
            "classes is 2 or more": self.classes >= 2,
            "noise is 0 or more": self.noise >= 0,
        }
        check_fields(self, "rmat", claims)

    def build(self) -> Graph:
        rng = np.random.default_rng(self.seed)
        num_nodes = 1 << self.scale
        edges = edges_of_pairs(distinct_pairs(*self._pairs(rng), num_nodes), num_nodes)
        field_NC = rng.standard_normal((num_nodes, self.classes))
        x_NF = field_NC @ class_centres(self.classes, self.features, rng)
        x_NF += self.noise * rng.standard_normal(x_NF.shape)
        y_N = _smoothed(field_NC, edges).argmax(axis=1)
        return finish(self, "rmat", edges, x_NF, y_N, num_classes=self.classes, rng=rng)

    def _pairs(self, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        count = self.edge_factor << self.scale
        row_M, column_M = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for _ in range(self.scale):
            # One bit of both numbers at a time, from the highest: which quadrant of the matrix, then of that one.
            draw_M = rng.random(count, dtype=np.float32)
            lower_M = draw_M >= self.a + self.b
            right_M = (draw_M >= self.a) & ~lower_M | (draw_M >= self.a + self.b + self.c)
            row_M = 2 * row_M + lower_M
            column_M = 2 * column_M + right_M
        return row_M, column_M


def _smoothed(field_NC: NDArray[np.float64], edges: NDArray[np.int64]) -> NDArray[np.float64]:
    num_nodes, num_classes = field_NC.shape
    degree_N = np.bincount(edges[1], minlength=num_nodes).clip(min=1)
    for _ in range(_NUM_ROUNDS):
        mean_NC = np.empty_like(field_NC)
        for column in range(num_classes):
            # bincount adds up one component at a time: no buffer of edges times classes.
            received_E = field_NC[edges[0], column]
            mean_NC[:, column] = np.bincount(edges[1], weights=received_E, minlength=num_nodes) / degree_N
        field_NC = _OWN_SHARE * field_NC + mean_NC
        # Without this the classes would follow the few components whose mean strayed from 0, and the deviation shrink.
        field_NC = (field_NC - field_NC.mean(axis=0)) / field_NC.std(axis=0)
    return field_NC

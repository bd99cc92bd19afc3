"""sbm: a degree-corrected stochastic block model, the graph of the demo and of most tests.

Nodes of a class link to each other more often than to others, by `homophily`; features are the class's centre and
noise, so a model that averages over neighbours sees through noise that blinds one which does not.

    sbm(nodes=100000, classes=10, degree=30, degree_spread=1.0)
"""

import logging
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from laconic.datasets._edges import distinct_pairs, edges_of_pairs, sorted_unique
from laconic.datasets.base import Generator, check_fields, class_centres, finish
from laconic.errors import ConfigError
from laconic.graph import Graph

logger = logging.getLogger(__name__)

# Pairs are drawn until there are enough distinct ones; past this share of all possible pairs that would be slow.
_DENSEST = 0.9
_MOST_ROUNDS = 200

# Shapes: N nodes, M pairs, F features


@final
@dataclass(frozen=True)
class Sbm(Generator):
    """Classes of nodes that prefer their own kind (stochastic block model).

    Undirected, without loops or duplicates. Unless shuffled, nodes stand by class.

    Args:
        nodes, classes, features: how many of each; classes are of equal size.
        degree: mean number of neighbours of a node.
        homophily: share of edges that join nodes of one class, exactly.
        noise: deviation of each feature around the class's centre; centres are 1.4 apart.
        degree_spread: deviation of the logarithm of a node's expected degree; 0 for all alike, 1 or more for hubs.
    """

    nodes: int = 2000
    classes: int = 5
    features: int = 32
    degree: float = 10.0
    homophily: float = 0.8
    noise: float = 1.0
    degree_spread: float = 0.0

    def __post_init__(self) -> None:
        claims = {
            "classes is 1 or more": self.classes >= 1,
            "nodes is 3 or more, and 2 for each class": self.nodes >= max(3, 2 * self.classes),
            "features is 1 or more": self.features >= 1,
            "degree is 0 or more, and below the number of nodes": 0 <= self.degree < self.nodes,
            "homophily is from 0 to 1 (1 if there is one class)": 1 - (self.classes > 1) <= self.homophily <= 1,
            "noise is 0 or more": self.noise >= 0,
            "degree_spread is from 0 to 100": 0 <= self.degree_spread <= 100,
        }
        check_fields(self, "sbm", claims)
        same, other = self._num_pairs()
        size = self.nodes // self.classes
        possible_same = self.classes * size * (size - 1) // 2
        possible_other = size * size * self.classes * (self.classes - 1) // 2
        if same > _DENSEST * possible_same or other > _DENSEST * possible_other:
            raise ConfigError(
                f"sbm: degree={self.degree} with homophily={self.homophily} asks for {same} pairs within classes and "
                f"{other} between them, of {possible_same} and {possible_other} possible ones; at most {_DENSEST:.0%} "
                f"of each can be drawn. Ask for a lower degree or more nodes."
            )

    def build(self) -> Graph:
        rng = np.random.default_rng(self.seed)
        sizes = np.full(self.classes, self.nodes // self.classes)
        sizes[: self.nodes % self.classes] += 1
        y_N = np.repeat(np.arange(self.classes), sizes)
        weight_N = np.exp(self.degree_spread * rng.standard_normal(self.nodes))
        draw = _Draw(y_N, np.concatenate([[0], np.cumsum(sizes)]), weight_N)
        pools = [
            _distinct(draw, wanted, same_class, rng)
            for wanted, same_class in zip(self._num_pairs(), (True, False), strict=True)
        ]
        centres = class_centres(self.classes, self.features, rng)
        x_NF = centres[y_N] + self.noise * rng.standard_normal((self.nodes, self.features))
        edges = edges_of_pairs(np.concatenate(pools), self.nodes)
        return finish(self, "sbm", edges, x_NF, y_N, num_classes=self.classes, rng=rng)

    def _num_pairs(self) -> tuple[int, int]:
        total = round(self.nodes * self.degree / 2)
        same = round(total * self.homophily)
        return same, total - same


class _Draw:
    """Draws nodes by weight: they lie on a line, each as long as it is heavy, those of a class side by side."""

    def __init__(self, y_N: NDArray[np.int64], first: NDArray[np.int64], weight_N: NDArray[np.float64]) -> None:
        self._y_N = y_N
        self.num_nodes = len(y_N)
        self._ends_N = np.cumsum(weight_N)
        # Where each class begins on the line, and where the last one ends.
        self._starts = np.concatenate([[0.0], self._ends_N])[first]

    def pairs(self, count: int, same_class: bool, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
        ends_M = self._nodes_at(rng.random(count) * self._starts[-1])
        start_M, stop_M = self._starts[self._y_N[ends_M]], self._starts[self._y_N[ends_M] + 1]
        if same_class:
            return ends_M, self._nodes_at(start_M + rng.random(count) * (stop_M - start_M))
        # The line without the class of the first node: what lies behind the gap moves by its length.
        place_M = rng.random(count) * (self._starts[-1] - (stop_M - start_M))
        place_M += np.where(place_M >= start_M, stop_M - start_M, 0.0)
        return ends_M, self._nodes_at(place_M)

    def _nodes_at(self, place_M: NDArray[np.float64]) -> NDArray[np.int64]:
        # Rounding can put a place on a border: the clip keeps it a node, the caller drops a pair of the wrong kind.
        return np.searchsorted(self._ends_N, place_M, side="right").clip(max=self.num_nodes - 1)

    def is_same_class(self, ends_M: NDArray[np.int64], others_M: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(self._y_N[ends_M] == self._y_N[others_M])


def _distinct(draw: _Draw, wanted: int, same_class: bool, rng: np.random.Generator) -> NDArray[np.int64]:
    """Returns `wanted` distinct pairs as keys, or fewer where a few heavy nodes leave no more to find."""
    keys = np.empty(0, np.int64)
    for _ in range(_MOST_ROUNDS):
        missing = wanted - len(keys)
        if missing <= 0:
            break
        # The more pairs there are already, the more draws hit one of them.
        tries = missing * len(keys) // wanted
        ends, others = draw.pairs(missing + 2 * tries + 16, same_class, rng)
        right = draw.is_same_class(ends, others) == same_class
        drawn = distinct_pairs(ends[right], others[right], draw.num_nodes)
        keys = sorted_unique(np.concatenate([keys, drawn]))
    if len(keys) < wanted:
        logger.warning(
            "sbm: only %d of %d pairs were found; a lower degree or degree_spread leaves room for all.",
            len(keys),
            wanted,
        )
    if len(keys) > wanted:
        keys = rng.permutation(keys)[:wanted]
    return keys

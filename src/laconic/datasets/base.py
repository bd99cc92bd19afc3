"""Generator: a graph made from a few numbers, the same for the same seed. A member adds edges, features and labels.

A new one is a file here and a line in `GENERATORS` (load.py).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.datasets._splits import check_shares, random_masks, random_origin
from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.specs import format_spec

# Shapes: N nodes, E edges, F features, C classes


@dataclass(frozen=True, kw_only=True)
class Generator(ABC):
    """Makes one graph; a frozen dataclass whose fields are the arguments of its spec: its own, then these.

    Args:
        train, val: shares of the nodes; test is the rest.
        shuffle: whether nodes stand in random order.
        seed: the same fields and seed give the same graph.
    """

    train: float = 0.6
    val: float = 0.2
    shuffle: bool = True
    seed: int = 0

    @abstractmethod
    def build(self) -> Graph:
        """Returns the graph. The same fields give the same graph."""


def check_fields(fields: Generator, what: str, claims: dict[str, bool]) -> None:
    """Raises ConfigError for the first of `claims` ("nodes is 2 or more": whether it holds) that is false."""
    check_shares(fields.train, fields.val, what=what)
    numbers = {name: value for name, value in vars(fields).items() if name != "seed"}
    # Beyond this numpy fails in ways of its own, each less clear than a claim.
    sizes = {f"{name} is at most 2**31": value <= 2**31 for name, value in numbers.items()}
    for claim, holds in {**sizes, **claims, "seed is 0 or more": fields.seed >= 0}.items():
        if not holds:
            name = claim.split()[0]
            raise ConfigError(f"{what}: it is needed that {claim}; got {name}={getattr(fields, name)!r}.")


def finish(
    fields: Generator,
    family: str,
    edges: NDArray[np.int64],
    x_NF: NDArray[np.floating],
    y_N: NDArray[np.int64],
    *,
    num_classes: int,
    rng: np.random.Generator,
) -> Graph:
    """Returns the graph of the parts: nodes in random order if `fields.shuffle`, edges sorted, masks drawn."""
    num_nodes = len(y_N)
    place_N = rng.permutation(num_nodes) if fields.shuffle else np.arange(num_nodes)
    sources, destinations = place_N[edges]
    # Sorting one key per edge is faster than sorting pairs by way of their order.
    keys = np.sort(sources * num_nodes + destinations)
    was_N = np.argsort(place_N)
    masks: dict[str, Any] = dict(random_masks(num_nodes, fields.train, fields.val, rng))
    return Graph(
        edge_index=torch.from_numpy(np.stack(np.divmod(keys, num_nodes))),
        x=torch.from_numpy(x_NF[was_N].astype(np.float32)),
        y=torch.from_numpy(y_N[was_N]),
        num_classes=num_classes,
        name=format_spec(fields, {family: type(fields)}),
        split_origin=random_origin(fields.seed),
        **masks,
    )


def class_centres(num_classes: int, num_features: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Returns a vector of length 1 per class, at right angles while there are enough features, (C, F)."""
    if num_classes <= num_features:
        basis, _ = np.linalg.qr(rng.standard_normal((num_features, num_classes)))
        return np.ascontiguousarray(basis.T)
    centres = rng.standard_normal((num_classes, num_features))
    return np.asarray(centres / np.linalg.norm(centres, axis=1, keepdims=True))

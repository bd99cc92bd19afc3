"""Graphs small enough to go through every way of dealing their nodes out, and what a rank sees of them."""

from dataclasses import dataclass

import numpy as np
import torch

from laconic.graph import Adjacency


def edges_among(sources, destinations, rows):
    """The edges among `rows`, renumbered."""
    number = np.full(int(max(sources.max(), destinations.max(), rows.max(initial=0))) + 1, -1)
    number[rows] = np.arange(len(rows))
    among = (number[sources] >= 0) & (number[destinations] >= 0)
    return Adjacency.from_edges(number[sources[among]], number[destinations[among]], len(rows), len(rows))


@dataclass(frozen=True)
class TinyGraph:
    """Edges, features x and, per node, the direction in which its loss pulls: loss_v = pull_v . output_v, linear."""

    sources: np.ndarray
    destinations: np.ndarray
    degrees: np.ndarray
    x: torch.Tensor
    pull: torch.Tensor

    @property
    def num_nodes(self):
        return len(self.degrees)

    @property
    def full_means(self):
        """Mean of each node's neighbours in the whole graph."""
        total = torch.zeros_like(self.x).index_add_(
            0, torch.from_numpy(self.destinations), self.x[torch.from_numpy(self.sources)]
        )
        return (total / torch.from_numpy(self.degrees)[:, None]).numpy()


def tiny_graph(num_nodes, share, seed=0, num_features=4, num_outputs=2):
    """A directed graph without loops or duplicates, in which each node has a neighbour and degrees differ."""
    rng = np.random.default_rng(seed)
    has_edge = rng.random((num_nodes, num_nodes)) < share
    np.fill_diagonal(has_edge, False)
    for node in range(num_nodes):
        has_edge[(node + 1) % num_nodes, node] |= not has_edge[:, node].any()
    sources, destinations = np.nonzero(has_edge)
    degrees = np.bincount(destinations, minlength=num_nodes)
    assert len(set(degrees)) > 1
    return TinyGraph(
        sources,
        destinations,
        degrees,
        torch.from_numpy(rng.normal(size=(num_nodes, num_features))),
        torch.from_numpy(rng.normal(size=(num_nodes, num_outputs))),
    )


def gradient(operators, x, pull, factors, rows=slice(None)):
    """Gradient of the loss, sum over `rows` of factor_v (pull_v . output_v), for output = operators x weights."""
    weights = torch.ones(x.shape[1], pull.shape[1], dtype=torch.float64, requires_grad=True)
    output = x @ weights
    for operator in operators:
        output = operator @ output
    loss = (torch.from_numpy(np.asarray(factors)) * (pull * output)[rows].sum(dim=1)).sum()
    return torch.autograd.grad(loss, weights)[0].numpy()

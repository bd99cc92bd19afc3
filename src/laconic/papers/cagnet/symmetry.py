"""Whether a matrix is its own transpose, known to all ranks before anything relies on it."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch_geometric.nn import APPNP, MessagePassing

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Summa, parse_grid
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.sharded.block import Edges

_ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def check_symmetric(edges: Edges, communicator: Communicator) -> None:
    """Raises ConfigError on all ranks unless every edge has its reverse, as heavy.

    All ranks call it together.

    Each rank adds up a number drawn from each of its edges, and one from each of their reverses:
    over all ranks the two sums are equal, as integers, if the edges are those reversed, and
    otherwise but for a chance of 2^-64.

    Traffic: an all_reduce of 8 bytes.

    Args:
        edges: those of this rank; every edge of the graph is some rank's, once.
    """
    sources, destinations, weight = edges
    weights = np.zeros(len(sources)) if weight is None else weight.detach().double().numpy()
    with np.errstate(over="ignore"):
        one_way, back = _drawn(sources, destinations, weights), _drawn(destinations, sources, weights)
        difference = (one_way.sum(dtype=np.uint64) - back.sum(dtype=np.uint64)).astype(np.int64)
    if int(communicator.all_reduce(torch.tensor([int(difference)]))):
        raise ConfigError(
            "2d_summa(symmetric=True) takes the matrix for its own transpose, but this graph has edges without their "
            'reverse, or with another weight. Use grid="2d_summa", which needs no symmetry, or an undirected graph.'
        )


def check_symmetric_convolutions(model: nn.Module, grid: str) -> None:
    """Raises UnsupportedModelError where `grid` needs symmetry that a convolution lacks."""
    if grid == "auto" or parse_grid(grid) != Summa(symmetric=True):
        return
    for name, module in model.named_modules():
        if not isinstance(module, MessagePassing):
            continue
        reason = ""
        if module.aggr == "mean":
            reason = "divides each row by its own degree"
        elif isinstance(module, APPNP) and module.dropout > 0:
            reason = "drops edges one way"
        if reason:
            raise UnsupportedModelError(
                f"{name or 'the model'} is a {type(module).__name__}, whose matrix is not its own transpose, since it "
                f'{reason}: 2d_summa(symmetric=True) cannot train it. Use grid="2d_summa", which needs no symmetry.'
            )


def _drawn(
    sources: NDArray[np.int64], destinations: NDArray[np.int64], weights: NDArray[np.float64]
) -> NDArray[np.uint64]:
    mixed = np.zeros(len(sources), np.uint64)
    for part, odd in zip((sources, destinations, weights.view(np.uint64)), _ODD, strict=True):
        mixed = (mixed ^ part.astype(np.uint64)) * np.uint64(odd)
        mixed ^= mixed >> np.uint64(29)
    return mixed * np.uint64(_ODD[0])

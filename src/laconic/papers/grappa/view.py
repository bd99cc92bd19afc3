"""View: the graph as one rank sees it while it trains alone: the chunks it holds, and the edges among them.

Base rows come first: they are the ones that the rank answers for, with labels and masks. Rows of variable chunks
follow, as context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.attach.aggregator import Degrees
from laconic.graph import Adjacency, Shard
from laconic.kernels.compress import as_indices
from laconic.papers.grappa.held import HeldChunk

# Shapes: N rows held, E edges among them, C chunks


@final
@dataclass(frozen=True, eq=False)
class View:
    """Rows of the chunks that a rank holds, and the edges among them.

    Args:
        shard: rows, base ones first, and edges.
        degrees: of its rows in the whole graph.
        chunk_of_row: which chunk each row is of, (N,).
    """

    shard: Shard
    degrees: Degrees
    chunk_of_row: NDArray[np.int64]

    def factors(self, of_pairs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns a factor per edge, in the adjacency's order, from one per (destination chunk, source chunk)."""
        adjacency = self.shard.adjacency
        factors: NDArray[np.float64] = of_pairs[
            self.chunk_of_row[adjacency.row_of_edge], self.chunk_of_row[adjacency.indices]
        ]
        return factors


def build_view(held: Sequence[HeldChunk], base: Shard, chunk_starts: NDArray[np.int64]) -> View:
    """Returns the view of the chunks `held`, the rank's own first.

    Args:
        base: the rank's own rows, with labels and masks.
        chunk_starts: where each chunk's rows begin among the places, (C + 1,).
    """
    sizes = [chunk.num_rows for chunk in held]
    num_rows, num_base = sum(sizes), base.num_rows
    # The number of each place's row here, or -1: a table of all places is cheaper than any search.
    row_of_place = np.full(chunk_starts[-1], -1, np.int64)
    first = 0
    for chunk in held:
        start = chunk_starts[chunk.number]
        row_of_place[start : start + chunk.num_rows] = np.arange(first, first + chunk.num_rows)
        first += chunk.num_rows
    degrees = np.concatenate([np.diff(chunk.indptr) for chunk in held])
    columns = np.concatenate([row_of_place[chunk.places] for chunk in held])
    is_here = columns >= 0
    row_of_edge = np.repeat(np.arange(num_rows), degrees)
    indptr = np.append(0, np.cumsum(np.bincount(row_of_edge[is_here], minlength=num_rows)))
    adjacency = Adjacency(indptr, as_indices(columns[is_here], num_rows), num_rows)
    weights = [chunk.weight for chunk in held if chunk.weight is not None]
    weight = torch.cat(weights) if weights else None
    shard = Shard(
        x=_extended(base.x, held),
        y=base.y,
        edge_index=adjacency.edge_index,
        adjacency=adjacency,
        node_ids=torch.cat([chunk.node_ids for chunk in held]),
        num_owned=num_base,
        train_mask=base.train_mask,
        val_mask=base.val_mask,
        test_mask=base.test_mask,
        edge_weight=None if weight is None else weight[torch.from_numpy(is_here)],
    )
    sums: NDArray[np.float64] | None = None
    if weight is not None:
        sums = np.bincount(row_of_edge, weights=weight.double().numpy(), minlength=num_rows).astype(np.float64)
    chunk_of_row = np.repeat([chunk.number for chunk in held], sizes)
    return View(shard, Degrees(degrees.astype(np.float64), sums), chunk_of_row)


def _extended(own: Tensor, held: Sequence[HeldChunk]) -> Tensor:
    """Returns the features of all rows held, the own ones as they are; `own` itself where there are no others."""
    ends = np.cumsum([chunk.num_rows for chunk in held])
    further = [chunk.x for chunk, end in zip(held, ends, strict=True) if end > len(own)]
    return torch.cat([own, *further]) if further else own

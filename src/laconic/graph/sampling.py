"""Mini-batches of sampled neighbours, drawn ahead of training by worker threads.

sampler = NeighbourSampler(graph, fanouts=(10, 10), seed=0)
for batch in epoch_batches(sampler, train_rows, batch_size=1024, epoch=1): ...
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.errors import ConfigError
from laconic.graph.adjacency import Adjacency
from laconic.graph.graph import Graph
from laconic.graph.shard import Shard
from laconic.kernels.compress import as_indices
from laconic.kernels.gather import gather_rows
from laconic.kernels.keyed import fold_key
from laconic.kernels.sampling import expand_nodes

# What a key is for: batches of one seed must not share random numbers with its shuffling.
_SHUFFLE, _SAMPLE = 1, 2


@final
class NeighbourSampler:
    """Draws the neighbourhood of some nodes, layer by layer, without replacement (GraphSAGE, arXiv 1706.02216).

    Args:
        graph: where to draw from, whole or one rank's share with no halo.
        fanouts: how many neighbours to draw for each node at each hop, the first for the batch's own nodes; -1: all.
        seed: keys the draws together with epoch and step.
    """

    def __init__(self, graph: Graph | Shard, fanouts: Sequence[int], *, seed: int) -> None:
        if not fanouts or any(fanout == 0 or fanout < -1 for fanout in fanouts):
            raise ConfigError(
                f"fanouts should be one number per layer, each at least 1, or -1 for all neighbours; "
                f"got {list(fanouts)}."
            )
        self.graph = graph
        self.fanouts = tuple(fanouts)
        self.seed = seed
        # Built here and not by the first worker that needs it: they would all build it.
        self._adjacency = graph.adjacency
        weights = graph.edge_weight
        order = self._adjacency.edge_order
        self._weights = weights if weights is None or order is None else weights[torch.from_numpy(order)]
        # Rows behind a rank's own have no label here.
        unlabelled = graph.y.new_zeros(len(graph.x) - len(graph.y), *graph.y.shape[1:])
        self._y = torch.cat([graph.y, unlabelled])
        self._scratch = threading.local()

    def sample(self, rows: NDArray[np.int64], *, epoch: int, step: int) -> Shard:
        """Returns the batch of the nodes `rows`: they are its first rows, in this order, and all that it owns.

        Its masks: every owned row is a training row of the batch, and there are no others.
        """
        local_of = self._local_numbers()
        rows = np.ascontiguousarray(rows, dtype=np.int64)
        local_of[rows] = np.arange(len(rows))
        nodes, starts, edges = [rows], [np.zeros(1, np.int64)], [np.empty(0, np.int64)]
        num_known, num_edges = len(rows), 0
        for hop, fanout in enumerate(self.fanouts):
            key = fold_key(self.seed, _SAMPLE, epoch, step, hop)
            drawn = expand_nodes(
                self._adjacency.indptr, self._adjacency.indices, nodes[-1], fanout, key, local_of, num_known
            )
            starts.append(drawn[0][1:] + num_edges)
            edges.append(drawn[1])
            nodes.append(drawn[2])
            num_known += len(drawn[2])
            num_edges += len(drawn[1])
        # The nodes of the last hop are not expanded: their rows are empty.
        starts.append(np.full(len(nodes[-1]), num_edges, np.int64))
        all_nodes, all_edges = np.concatenate(nodes), np.concatenate(edges)
        sources = as_indices(local_of[self._adjacency.indices[all_edges]], num_known)
        local_of[all_nodes] = -1
        adjacency = Adjacency(np.concatenate(starts), sources, num_known)
        # The backward pass needs the transpose: made here, by a worker, training does not wait for it.
        _ = adjacency.transposed
        return self._gather(all_nodes, all_edges, adjacency, len(rows))

    def _gather(
        self, nodes: NDArray[np.int64], edges: NDArray[np.int64], adjacency: Adjacency, num_owned: int
    ) -> Shard:
        graph = self.graph
        owned, nothing = (torch.from_numpy(np.zeros(len(nodes), bool)) for _ in range(2))
        owned[:num_owned] = True
        return Shard(
            x=_take(graph.x, nodes),
            y=_take(self._y, nodes),
            edge_index=adjacency.edge_index,
            adjacency=adjacency,
            node_ids=_take(graph.node_ids, nodes),
            num_owned=num_owned,
            train_mask=owned,
            val_mask=nothing,
            test_mask=nothing,
            edge_weight=None if self._weights is None else _take(self._weights, edges),
        )

    def _local_numbers(self) -> NDArray[np.int64]:
        # One per thread, cleared by touched entries only: a batch costs nothing per node of the graph.
        if not hasattr(self._scratch, "local_of"):
            self._scratch.local_of = np.full(len(self.graph.x), -1, np.int64)
        numbers: NDArray[np.int64] = self._scratch.local_of
        return numbers


def _take(values: Tensor, rows: NDArray[np.int64]) -> Tensor:
    """Returns values[rows]. Torch's own way would start a team of threads in every worker, to fight with training's."""
    out = torch.empty(len(rows), *values.shape[1:], dtype=values.dtype)
    if rows.size:
        # As bytes, so that one kernel serves every dtype, those unknown to numpy too.
        gather_rows(_as_bytes(values.contiguous()), rows, _as_bytes(out))
    return out


def _as_bytes(values: Tensor) -> NDArray[np.uint8]:
    pieces: NDArray[np.uint8] = values.view(len(values), -1).view(torch.uint8).numpy()
    return pieces


@final
class BatchStream:
    """The batches of one epoch, in order, drawn ahead by threads. Made by `epoch_batches`; close it if left early."""

    def __init__(self, sampler: NeighbourSampler, batches: list[NDArray[np.int64]], epoch: int, step: int) -> None:
        self.wait_seconds = 0.0
        """How long the consumer has waited so far."""
        self._sampler, self._batches, self._epoch, self._step = sampler, batches, epoch, step

    def start(self, num_workers: int, prefetch: int) -> "BatchStream":
        """Starts the threads, which draw up to `prefetch` batches ahead."""
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="sampler")
        self._ahead: deque[Future[Shard]] = deque()
        for _ in range(prefetch):
            self._submit()
        return self

    def __iter__(self) -> Iterator[Shard]:
        return self

    def __next__(self) -> Shard:
        if not self._ahead:
            self.close()
            raise StopIteration
        since = time.perf_counter()
        try:
            batch = self._ahead.popleft().result()
        except BaseException:
            self.close()
            raise
        self.wait_seconds += time.perf_counter() - since
        self._submit()
        return batch

    def close(self) -> None:
        """Ends the threads; what they had drawn is lost."""
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()
        self._batches = []
        self._pool.shutdown(wait=True)

    def _submit(self) -> None:
        if self._step < len(self._batches):
            rows = self._batches[self._step]
            self._ahead.append(self._pool.submit(self._sampler.sample, rows, epoch=self._epoch, step=self._step))
            self._step += 1


def epoch_batches(
    sampler: NeighbourSampler,
    rows: Tensor,
    *,
    batch_size: int,
    num_batches: int | None = None,
    epoch: int,
    start_step: int = 0,
    num_workers: int = 1,
    prefetch: int = 4,
    shuffle: bool = True,
) -> BatchStream:
    """Returns the batches of `epoch`: `rows` in an order keyed by (seed, epoch), `batch_size` at a time.

    Args:
        num_batches: cut them into as many batches of nearly one size instead, the larger ones first; some may be empty.
        start_step: leave out this many batches; the others are the same as without it.
        num_workers, prefetch: how many threads draw, and how many batches ahead. They do not change what is drawn.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size should be at least 1, got {batch_size}.")
    order = rows.numpy()
    if shuffle:
        key = int(fold_key(sampler.seed, _SHUFFLE, epoch))
        order = np.random.Generator(np.random.Philox(key=key)).permutation(order)
    if num_batches is None:
        batches = [order[begin : begin + batch_size] for begin in range(0, len(order), batch_size)]
    else:
        batches = np.array_split(order, num_batches)
    return BatchStream(sampler, batches, epoch, start_step).start(num_workers, prefetch)

"""A model run on twelve nodes, whole and split between two ranks, with every call of a convolution noted."""

import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from laconic.attach import attach
from laconic.attach.forward import run_model
from laconic.attach.shared import flat_values
from laconic.comm.communicator import Communicator
from laconic.comm.ledger import Ledger
from laconic.comm.transport import Transport, run_ranks
from laconic.graph import Graph, Shard
from laconic.sharded.aggregator import ShardedAggregator
from laconic.sharded.block import BlockMap
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.hops import with_hops
from laconic.sharded.placement import place
from laconic.sharded.reach import with_reach
from laconic.store import chunk_in_memory

NUM_NODES = 12
_NUM_RANKS = 2


@final
@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a convolution.

    Args:
        name: of the convolution in the model.
        inputs, outputs: tensors with a row per node.
    """

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]


@final
class TinyRun:
    """One forward pass of a copy of a model, and what its convolutions were given and gave.

    Args:
        num_rows: of the nodes that it runs on.
    """

    def __init__(self, num_rows: int) -> None:
        self.output: Tensor | None = None
        """None until the pass has come to its end."""
        self.calls: list[Call] = []
        self.used: set[str] = set()
        """Names of the convolutions that sent messages or were called."""
        self.error: Exception | None = None
        self._num_rows = num_rows
        self._inside: list[str] = []

    @property
    def failed_in(self) -> str | None:
        """Name of the convolution that was under way when the pass raised an error, if any was."""
        return self._inside[-1] if self.error is not None and self._inside else None

    def run(self, model: nn.Module, shard: Shard) -> "TinyRun":
        """Runs `model`, a copy that is thrown away afterwards."""
        for name, module in model.named_modules():
            if isinstance(module, MessagePassing):
                self._watch(name or "the model", module)
        try:
            # Whether gradients are recorded is each thread's own affair.
            with torch.no_grad():
                self.output = run_model(model, shard)
        except Exception as error:
            self.error = error
            raise
        return self

    def _watch(self, name: str, conv: Any) -> None:
        given: list[list[Tensor]] = []

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.used.add(name)
            self._inside.append(name)
            # Cloned: a layer after it may write into them.
            given.append([rows.clone() for rows in self._rows(flat_values(args, kwargs))])

        def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self._inside.pop()
            outputs = [rows.clone() for rows in self._rows(flat_values((output,), {}))]
            self.calls.append(Call(name, given.pop(), outputs))

        def note_use(module: Any, inputs: Any) -> None:
            self.used.add(name)

        conv.register_forward_pre_hook(enter, with_kwargs=True)
        conv.register_forward_hook(leave, with_kwargs=True)
        if "laconic_convolution" not in conv.__dict__:
            # A kernel takes hooks on message passing for a wish to see PyG's own code run.
            conv.register_propagate_forward_pre_hook(note_use)

    def _rows(self, values: tuple[Any, ...]) -> Iterator[Tensor]:
        for value in values:
            if isinstance(value, Tensor) and value.is_floating_point() and value.shape[:1] == (self._num_rows,):
                yield value


def run_whole(model: nn.Module, graph: Graph) -> TinyRun:
    """Runs a copy of `model` on one machine."""
    shard, mine = Shard.whole(graph), copy.deepcopy(model)
    if model.training:
        # Its dropout is then the one that ranks will have.
        attach(mine, shard)
    return TinyRun(NUM_NODES).run(mine, shard)


def run_shared(
    models: Sequence[nn.Module], graph: Graph, reach: int = 0
) -> tuple[list[list[TinyRun]], Exception | None]:
    """Runs copies of models on two ranks, one model after the other.

    Args:
        reach: hops over which rows of the other rank are computed here.

    Returns:
        Of each model, the runs of both ranks. And the error with which all came to an end, if any did.
    """
    parts = np.arange(NUM_NODES) % _NUM_RANKS
    runs = [[TinyRun(NUM_NODES // _NUM_RANKS) for _ in range(_NUM_RANKS)] for _ in models]

    def run(transport: Transport) -> None:
        communicator = Communicator(transport, Ledger(transport.rank))
        block_map = BlockMap.one_axis(ChunkMap.even(np.bincount(parts).tolist(), _NUM_RANKS))
        placement = place(lambda number: chunk_in_memory(graph, parts, _NUM_RANKS, number), block_map, communicator)
        placement = with_reach(placement, reach)
        shard = with_hops(placement.shard, placement.hops, communicator.ledger)
        for model, of_ranks in zip(models, runs, strict=True):
            mine = copy.deepcopy(model)
            attach(mine, shard, aggregator=ShardedAggregator(placement, shard=shard))
            of_ranks[transport.rank].run(mine, shard)

    try:
        # Long: on a busy machine the first run waits for kernels to be compiled.
        run_ranks(_NUM_RANKS, run, timeout=120)
    except Exception as error:
        return runs, error
    return runs, None


def difference(whole: list[Tensor], parts: list[list[Tensor]]) -> float:
    """Returns how far rows of the whole graph are from those of its parts, relative to the largest, or to 1.

    Infinite where they are not the same tensors, or not one row per node.
    """
    if any(len(rows) != len(whole) for rows in parts):
        return float("inf")
    largest = 0.0
    for number, expected in enumerate(whole):
        joined = torch.empty_like(expected)
        for part, rows in enumerate(parts):
            if rows[number].shape != joined[part::_NUM_RANKS].shape:
                return float("inf")
            joined[part::_NUM_RANKS] = rows[number]
        distance = float((joined - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        # NaN on both sides is no agreement either.
        largest = max(largest, distance) if distance == distance else float("inf")
    return largest


def tiny_graph(width: int, dtype: torch.dtype, *, weighted: bool) -> Graph:
    """Returns the graph to try a model on.

    Args:
        weighted: with edge weights.
    """
    random = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NUM_NODES, (2, 40), generator=random)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    every = torch.arange(NUM_NODES) % 3
    weight = torch.rand(edges.shape[1], generator=random)
    return Graph(
        x=torch.randn(NUM_NODES, width, dtype=torch.float64, generator=random).to(dtype),
        y=torch.arange(NUM_NODES) % 2,
        edge_index=edges,
        edge_weight=weight.to(dtype) if weighted else None,
        train_mask=every == 0,
        val_mask=every == 1,
        test_mask=every == 2,
        num_classes=2,
        name="a tiny graph",
    )

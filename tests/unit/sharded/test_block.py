"""Which edges a rank reads and how it numbers them."""

from types import SimpleNamespace

import numpy as np
import pytest
from tests.unit.sharded.product_runs import chunks_of, random_graph

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid, parse_grid
from laconic.comm.ledger import Ledger
from laconic.comm.transport import run_ranks
from laconic.papers.cagnet.layouts import block_map_of
from laconic.sharded.block import EDGE_ARRAYS, BlockMap, make_block
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.placement import place


class Noting:
    """A chunk that notes which of its arrays are asked for."""

    def __init__(self, chunk, asked: set[str]) -> None:
        self._chunk, self._asked = chunk, asked

    def __getattr__(self, name):
        if name in (*EDGE_ARRAYS, "node_ids", "x", "y", "train_mask", "val_mask", "test_mask"):
            self._asked.add(name)
        return getattr(self._chunk, name)

    def tensor(self, name):
        self._asked.add(name)
        return self._chunk.tensor(name)

    def features(self):
        self._asked.add("x")
        return self._chunk.features()


@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.parametrize("preset", ["1d", "1d_columns", "2d", "feature", "1.5d_replicated(c=2)", "2d_summa"])
def test_a_rank_reads_what_it_says_it_needs_and_nothing_else(preset, is_sparse):
    graph, layout = random_graph(40, 200), parse_grid(preset)
    read, chunk_map = chunks_of(graph, 4)
    block_map = block_map_of(layout, 4, chunk_map)

    def run(transport):
        asked: dict[int, set[str]] = {}
        place(
            lambda number: Noting(read(number), asked.setdefault(number, set())),
            block_map,
            Communicator(transport, Ledger(transport.rank)),
            is_sparse=is_sparse,
        )
        return asked

    for rank, asked in enumerate(run_ranks(4, run)):
        needed = block_map.arrays_of(rank)
        assert asked.keys() == needed.keys()
        for number, names in asked.items():
            assert names <= set(needed[number]), f"rank {rank}, chunk {number}"
            # This graph has no weights, and edges within a chunk are not in every block of its rows.
            certain = {name for name in needed[number] if not name.endswith("weight") and "intra" not in name}
            assert names >= certain, f"rank {rank}, chunk {number}"


def test_two_of_four_chunks_are_enough_for_a_rank_of_two_by_two():
    _, chunk_map = chunks_of(random_graph(40, 200), 4)
    needed = BlockMap(Grid(2, 2, 1), chunk_map).arrays_of(rank=2)
    assert sorted(needed) == [2, 3]
    assert "x" in needed[2]
    assert "x" not in needed[3]


def test_places_beyond_32_bits_are_numbered_within_the_block():
    # Three chunks, of which the second is as large as it gets: nodes of the third have places beyond 2^32.
    sizes = [3, 2**32, 4]
    chunk = SimpleNamespace(
        num_nodes=3,
        has_weights=False,
        intra_indptr=np.array([0, 1, 1, 1]),
        intra_indices=np.array([2], np.int32),
        bridge_ptr=np.array([0, 0, 2, 4]),
        bridge_src=np.array([2**31 - 1, 7, 3, 1], np.int32),
        bridge_dst=np.array([0, 1, 1, 2], np.int32),
    )
    chunk_map = ChunkMap(np.array(sizes), np.arange(3))
    block_map = BlockMap(Grid(3, 1, 1), chunk_map)
    block = make_block(block_map.edges_of(lambda number: chunk, 0), block_map, 0, is_sparse=True)
    assert block.other_columns.tolist() == [3 + 7, 3 + 2**31 - 1, 3 + 2**32 + 1, 3 + 2**32 + 3]
    assert block.adjacency.indices.tolist() == [2, 4, 3, 6, 5]
    assert block.adjacency.row_of_edge.tolist() == [0, 0, 1, 1, 2]

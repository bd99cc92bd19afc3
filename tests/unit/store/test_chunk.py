"""Each array of a chunk, against its definition; for every node order."""

from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.errors import StoreError
from laconic.graph import Graph
from laconic.store import REORDERS, Store, open_store, write_store

NUM_PARTS = 4
PARTS = np.random.default_rng(5).integers(NUM_PARTS, size=60).astype(np.int32)


@pytest.fixture
def weighted_graph(make_graph) -> Graph:
    return make_graph(weighted=True, dtype=torch.float64)


@pytest.fixture(params=REORDERS)
def store(request: pytest.FixtureRequest, weighted_graph: Graph, tmp_path: Path) -> Store:
    write_store(weighted_graph, PARTS, tmp_path / "store", reorder=request.param)
    return open_store(tmp_path / "store")


def test_each_node_is_in_the_chunk_of_its_part(store: Store, weighted_graph: Graph) -> None:
    for chunk in map(store.chunk, range(NUM_PARTS)):
        assert sorted(chunk.rows) == np.flatnonzero(chunk.number == PARTS).tolist()
        np.testing.assert_array_equal(chunk.x, weighted_graph.x.numpy()[chunk.rows])
        np.testing.assert_array_equal(chunk.y, weighted_graph.y.numpy()[chunk.rows])
        np.testing.assert_array_equal(chunk.train_mask, weighted_graph.train_mask.numpy()[chunk.rows])


def test_degrees_and_weight_sums_are_those_of_the_whole_graph(store: Store, weighted_graph: Graph) -> None:
    sources, destinations = weighted_graph.edge_index.numpy()
    weights = weighted_graph.edge_weight.numpy()
    for chunk in map(store.chunk, range(NUM_PARTS)):
        np.testing.assert_array_equal(chunk.in_degree, np.bincount(destinations, minlength=60)[chunk.rows])
        np.testing.assert_array_equal(chunk.out_degree, np.bincount(sources, minlength=60)[chunk.rows])
        np.testing.assert_allclose(chunk.in_weight, np.bincount(destinations, weights, minlength=60)[chunk.rows])


def test_intra_and_bridge_edges_are_each_edge_once(store: Store, weighted_graph: Graph) -> None:
    rows = [store.chunk(number).rows for number in range(NUM_PARTS)]
    found = []
    for chunk in map(store.chunk, range(NUM_PARTS)):
        for node in range(chunk.num_nodes):
            inside = slice(chunk.intra_indptr[node], chunk.intra_indptr[node + 1])
            for source, weight in zip(chunk.intra_indices[inside], chunk.intra_weight[inside], strict=True):
                found.append((int(chunk.rows[source]), int(chunk.rows[node]), float(weight)))
        for origin in range(NUM_PARTS):
            block = slice(chunk.bridge_ptr[origin], chunk.bridge_ptr[origin + 1])
            ends = zip(chunk.bridge_src[block], chunk.bridge_dst[block], chunk.bridge_weight[block], strict=True)
            found += [(int(rows[origin][s]), int(chunk.rows[d]), float(w)) for s, d, w in ends]
        assert chunk.bridge_ptr[chunk.number] == chunk.bridge_ptr[chunk.number + 1]
    pairs = weighted_graph.edge_index.T.tolist()
    expected = [(s, d, w) for (s, d), w in zip(pairs, weighted_graph.edge_weight.tolist(), strict=True)]
    assert sorted(found) == sorted(expected)


def test_edges_are_sorted_as_promised(store: Store) -> None:
    for chunk in map(store.chunk, range(NUM_PARTS)):
        for node in range(chunk.num_nodes):
            inside = chunk.intra_indices[chunk.intra_indptr[node] : chunk.intra_indptr[node + 1]]
            assert np.all(np.diff(inside) >= 0)
        origin = np.repeat(np.arange(NUM_PARTS), np.diff(chunk.bridge_ptr))
        keys = list(zip(origin, chunk.bridge_dst, chunk.bridge_src, strict=True))
        assert keys == sorted(keys)


def test_arrays_are_mapped_read_only_and_local_numbers_are_int32(store: Store) -> None:
    chunk = store.chunk(1)
    for name in chunk.entry.files:
        array = getattr(chunk, name)
        assert isinstance(array, np.memmap), name
        assert not array.flags.writeable, name
    for name in ("intra_indices", "bridge_src", "bridge_dst"):
        assert getattr(chunk, name).dtype == np.int32
    assert chunk.x is chunk.x


def test_the_number_of_files_grows_with_chunks_not_with_pairs(small_graph: Graph, tmp_path: Path) -> None:
    counts = []
    for num_parts in (2, 4, 8):
        write_store(small_graph, np.arange(60) % num_parts, tmp_path / str(num_parts))
        counts.append(sum(path.is_file() for path in (tmp_path / str(num_parts)).rglob("*")) - 1)
    assert counts[1] == 2 * counts[0]
    assert counts[2] == 4 * counts[0]


def test_using_one_array_opens_no_other_file(small_graph: Graph, tmp_path: Path) -> None:
    write_store(small_graph, PARTS, tmp_path / "store")
    for path in (tmp_path / "store").glob("chunk_*/*.npy"):
        if path.parent.name != "chunk_00002" or path.name != "in_degree.npy":
            path.unlink()
    assert len(open_store(tmp_path / "store").chunk(2).in_degree) == (PARTS == 2).sum()


def test_a_chunk_that_does_not_exist_is_refused(small_graph: Graph, tmp_path: Path) -> None:
    write_store(small_graph, PARTS, tmp_path / "store")
    store = open_store(tmp_path / "store")
    for number in (-1, 4):
        with pytest.raises(StoreError, match=f"has chunks 0 to 3; there is no chunk {number}"):
            store.chunk(number)


def test_weights_of_a_store_without_any_are_refused(small_graph: Graph, tmp_path: Path) -> None:
    write_store(small_graph, PARTS, tmp_path / "store")
    chunk = open_store(tmp_path / "store").chunk(0)
    assert not chunk.has_weights
    with pytest.raises(StoreError, match="edges of its graph have no weights"):
        _ = chunk.intra_weight

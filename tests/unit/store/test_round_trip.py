"""What is written comes back: the graph whole, the chunks as their definition says."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.graph.stats import PartitionStats
from laconic.store import REORDERS, Store, open_store, write_store

PARTS = np.random.default_rng(5).integers(4, size=60).astype(np.int32)
NODE_FIELDS = ("x", "y", "train_mask", "val_mask", "test_mask", "node_ids")


def stored(graph: Graph, folder: Path, parts: np.ndarray = PARTS, **options: object) -> Store:
    write_store(graph, parts, folder / "store", **options)
    return open_store(folder / "store")


def assert_same_graph(found: Graph, graph: Graph) -> None:
    for name in NODE_FIELDS:
        assert getattr(found, name).dtype == getattr(graph, name).dtype, name
        assert torch.equal(getattr(found, name), getattr(graph, name)), name
    for field in ("indptr", "indices"):
        np.testing.assert_array_equal(getattr(found.adjacency, field), getattr(graph.adjacency, field))
    assert (found.num_classes, found.name) == (graph.num_classes, graph.name)
    if graph.edge_weight is None:
        assert found.edge_weight is None
    else:
        assert found.edge_weight.dtype == graph.edge_weight.dtype
        assert torch.equal(found.edge_weight[found.adjacency.edge_order], graph.edge_weight[graph.adjacency.edge_order])


@pytest.mark.parametrize("reorder", REORDERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_graph_comes_back_bit_for_bit(
    make_graph, tmp_path: Path, dtype: torch.dtype, weighted: bool, reorder: str
) -> None:
    graph = make_graph(weighted=weighted)
    graph = dataclasses.replace(graph, x=graph.x.to(dtype), node_ids=torch.arange(60).flip(0) + 1000, num_classes=9)
    if weighted:
        graph = dataclasses.replace(graph, edge_weight=graph.edge_weight.to(dtype))
    assert_same_graph(stored(graph, tmp_path, reorder=reorder).to_graph(), graph)


def test_edges_come_back_sorted_by_destination_and_source(small_graph: Graph, tmp_path: Path) -> None:
    sources, destinations = stored(small_graph, tmp_path).to_graph().edge_index.tolist()
    pairs = list(zip(destinations, sources, strict=True))
    assert pairs == sorted(pairs)
    assert pairs == sorted((d, s) for s, d in small_graph.edge_index.T.tolist())


def test_several_labels_per_node_come_back(small_graph: Graph, tmp_path: Path) -> None:
    labels = (torch.arange(240).reshape(60, 4) % 3 == 0).to(torch.bfloat16)
    graph = dataclasses.replace(small_graph, y=labels)
    store = stored(graph, tmp_path)
    assert store.manifest.is_multilabel
    assert_same_graph(store.to_graph(), graph)


@pytest.mark.parametrize(
    ("parts", "num_parts"),
    [(np.zeros(60, int), 1), (PARTS % 2 * 2, 3), (PARTS, 9), (np.arange(60), 60), (np.full(60, 2), 3)],
    ids=["one chunk", "empty chunk in the middle", "empty chunks at the end", "a chunk per node", "all in the last"],
)
def test_any_division_comes_back(make_graph, tmp_path: Path, parts: np.ndarray, num_parts: int) -> None:
    graph = make_graph(weighted=True)
    store = stored(graph, tmp_path, parts, num_parts=num_parts, reorder="rcm")
    assert store.num_chunks == num_parts
    assert_same_graph(store.to_graph(), graph)


def test_a_graph_without_edges_comes_back(make_graph, tmp_path: Path) -> None:
    graph = make_graph(num_edges=0)
    assert_same_graph(stored(graph, tmp_path).to_graph(), graph)


@pytest.mark.parametrize(
    ("features", "resolution"), [("float16", 2**-11), ("bfloat16", 2**-8), ("float32", 0), ("float64", 0)]
)
def test_narrow_features_are_rounded_and_come_back_in_the_wider_type(
    small_graph: Graph, tmp_path: Path, features: str, resolution: float
) -> None:
    store = stored(small_graph, tmp_path, features=features)
    x = store.to_graph().x
    assert store.manifest.features_dtype == features
    assert x.dtype == (torch.float64 if features == "float64" else torch.float32)
    assert torch.equal(x, small_graph.x.to(getattr(torch, features)).to(x.dtype))
    # A normal number is off by at most half a unit in the last place.
    assert bool(((x - small_graph.x).abs() <= resolution * small_graph.x.abs() + 1e-7).all())


def test_half_precision_takes_half_the_space(make_graph, tmp_path: Path) -> None:
    graph = make_graph(num_features=64)
    wide = stored(graph, tmp_path / "wide").manifest.chunks[0].files["x"]
    narrow = stored(graph, tmp_path / "narrow", features="bfloat16").manifest.chunks[0].files["x"]
    assert (narrow.num_bytes - 128) * 2 == wide.num_bytes - 128  # the header of a .npy file has 128 bytes
    assert narrow.dtype == "bfloat16"


def test_features_too_large_for_half_precision_are_refused_by_node(small_graph: Graph, tmp_path: Path) -> None:
    x = small_graph.x.clone()
    x[41, 3] = 1e6
    graph = dataclasses.replace(small_graph, x=x)
    with pytest.raises(ConfigError, match=r"feature 3 of node 41 is 1e\+06, too large for float16 \(at most 65504\)"):
        stored(graph, tmp_path, features="float16")
    assert list(tmp_path.iterdir()) == []
    assert torch.isfinite(stored(graph, tmp_path, features="bfloat16").to_graph().x).all()


@pytest.mark.parametrize("reorder", REORDERS)
def test_numbering_by_store_is_the_same_graph_with_other_numbers(make_graph, tmp_path: Path, reorder: str) -> None:
    graph = make_graph(weighted=True)
    found = stored(graph, tmp_path, reorder=reorder).to_graph(numbering="store")
    row_of = found.node_ids  # 0..59 in the source, so an id is a row there
    assert sorted(row_of.tolist()) == list(range(60))
    assert PARTS[row_of.numpy()].tolist() == sorted(PARTS.tolist())
    assert torch.equal(found.x, graph.x[row_of])

    def weighted_edges(some: Graph, names: torch.Tensor) -> list[tuple[int, int, float]]:
        ends = names[some.edge_index].T.tolist()
        return sorted((s, d, w) for (s, d), w in zip(ends, some.edge_weight.tolist(), strict=True))

    assert weighted_edges(found, row_of) == weighted_edges(graph, torch.arange(60))


def test_the_manifest_keeps_statistics_and_provenance(small_graph: Graph, tmp_path: Path) -> None:
    manifest = stored(small_graph, tmp_path, provenance={"source": "here", "seed": 3}).manifest
    assert manifest.partition == PartitionStats.of(small_graph, PARTS, 4)
    assert manifest.provenance["source"] == "here"
    assert manifest.provenance["seed"] == 3
    assert set(manifest.provenance) >= {"laconic_version", "created"}
    assert manifest.num_edges == sum(chunk.num_intra_edges + chunk.num_bridge_edges for chunk in manifest.chunks)


def test_the_fingerprint_is_that_of_the_contents(small_graph: Graph, tmp_path: Path) -> None:
    first = stored(small_graph, tmp_path / "a", provenance={"source": "a"}).manifest
    again = stored(small_graph, tmp_path / "b", provenance={"source": "b"}).manifest
    other = stored(small_graph, tmp_path / "c", parts=(PARTS + 1) % 4).manifest
    assert first.fingerprint == again.fingerprint != other.fingerprint

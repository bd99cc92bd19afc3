"""Text ids and labels in a store: format 2. Stores without text stay in format 1, as older versions read them."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.errors import StoreError
from laconic.graph import Graph
from laconic.store import chunk_in_memory, open_store, write_store
from laconic.store.layout import Manifest, _hash_json

PARTS = np.random.default_rng(5).integers(3, size=60).astype(np.int32)
NAMES = np.array([f"Žofie {row}" * (1 + row % 3) for row in range(60)])
CLASSES = ("cat", "dog", "eel", "ünd")


@pytest.fixture
def named(small_graph: Graph) -> Graph:
    return dataclasses.replace(small_graph, id_names=NAMES, class_names=CLASSES, split_origin="random, seed 4")


@pytest.mark.parametrize("reorder", ["none", "rcm"])
@pytest.mark.parametrize("numbering", ["source", "store"])
def test_names_come_back_with_their_nodes(named: Graph, tmp_path: Path, reorder: str, numbering: str) -> None:
    manifest = write_store(named, PARTS, tmp_path / "store", reorder=reorder)
    assert manifest.format_version == 2
    assert manifest.has_id_names
    graph = open_store(tmp_path / "store", verify=True).to_graph(numbering=numbering)
    assert graph.id_names.tolist() == NAMES[graph.node_ids.numpy()].tolist()
    assert graph.class_names == CLASSES
    assert graph.split_origin == "random, seed 4"


def test_a_chunk_of_memory_has_the_names_of_its_nodes(named: Graph) -> None:
    chunk = chunk_in_memory(named, PARTS, 3, 1)
    rows = [bytes(row).rstrip(b"\0").decode() for row in chunk.tensor("id_names").tolist()]
    assert rows == NAMES[chunk.rows].tolist()


def test_the_fingerprint_is_of_names_too(named: Graph, tmp_path: Path) -> None:
    others = [
        named,
        dataclasses.replace(named, class_names=("a", "b", "c", "d")),
        dataclasses.replace(named, id_names=NAMES[::-1].copy()),
        dataclasses.replace(named, id_names=None),
        dataclasses.replace(named, id_names=None, class_names=()),
    ]
    found = {write_store(graph, PARTS, tmp_path / str(k)).fingerprint for k, graph in enumerate(others)}
    assert len(found) == len(others)


def test_an_altered_name_is_found(named: Graph, tmp_path: Path) -> None:
    write_store(named, PARTS, tmp_path / "store")
    path = tmp_path / "store" / "chunk_00001" / "id_names.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StoreError, match=r"chunk_00001/id_names\.npy has been altered"):
        open_store(tmp_path / "store").to_graph()


def test_a_store_without_text_stays_in_format_1_and_says_so(small_graph: Graph, tmp_path: Path) -> None:
    write_store(small_graph, PARTS, tmp_path / "store")
    written = json.loads((tmp_path / "store" / "manifest.json").read_text())
    assert written["format_version"] == 1
    assert "class_names" not in written
    assert not (tmp_path / "store" / "chunk_00000" / "id_names.npy").exists()
    store = open_store(tmp_path / "store")
    assert store.to_graph().id_names is None
    with pytest.raises(StoreError, match="has no id_names in its chunks: its node ids are numbers"):
        _ = store.chunk(0).id_names


def test_a_store_of_an_older_version_opens(small_graph: Graph, tmp_path: Path) -> None:
    """Its manifest tells of no split, and is summed as it was written."""
    fingerprint = write_store(small_graph, PARTS, tmp_path / "store").fingerprint
    path = tmp_path / "store" / "manifest.json"
    fields = json.loads(path.read_text())
    for name in ("split", "num_train", "num_val", "num_test"):
        del fields["provenance"][name]
    del fields["checksum"]
    path.write_text(json.dumps({**fields, "checksum": _hash_json(fields)}))
    store = open_store(tmp_path / "store", verify=True)
    assert store.manifest.fingerprint == fingerprint
    assert store.manifest.num_of_split is None
    assert torch.equal(store.to_graph().x, small_graph.x)


def test_the_split_is_told_by_the_manifest_alone(named: Graph, tmp_path: Path) -> None:
    text = write_store(named, PARTS, tmp_path / "store").to_json()
    manifest = Manifest.from_json(text, "here")
    assert manifest.num_of_split == named.num_of_split
    assert manifest.split_origin == "random, seed 4"

from pathlib import Path

import numpy as np
import pytest

from laconic.datasets import GENERATORS, available, load, save_npz
from laconic.graph import Graph


def test_every_generator_is_listed_with_arguments_that_build_it() -> None:
    entries = {entry.name: entry for entry in available() if entry.kind == "generator"}
    assert entries.keys() == GENERATORS.keys()
    for entry in entries.values():
        assert load(f"{entry.name}({', '.join(entry.arguments)})").name == entry.name
        assert entry.summary
        # What it shares with the others comes last.
        assert entry.arguments[-4:] == ("train=0.6", "val=0.2", "shuffle=True", "seed=0")


def test_what_the_search_path_holds_is_listed_with_its_sizes(
    tmp_path: Path, small_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_npz(small_graph, tmp_path / "dense.npz")
    np.savez(tmp_path / "sparse.npz", edge_index=np.zeros((2, 9), int), x_shape=np.array([6, 3]), y=np.zeros(6))
    (tmp_path / "broken.npz").write_bytes(b"not a zip file")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "edges.csv").touch()
    (tmp_path / "arxiv" / "raw").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    (tmp_path / ".42.tmp.dense.npz").touch()  # another process is still writing it
    monkeypatch.setenv("LACONIC_DATA", str(tmp_path))
    found = {entry.name: entry for entry in available() if entry.kind != "generator"}
    assert {name: entry.kind for name, entry in found.items()} == {
        "arxiv": "ogb",
        "broken": "npz",
        "dense": "npz",
        "sparse": "npz",
        "tables": "tables",
    }
    dense, sparse = found["dense"], found["sparse"]
    assert (dense.num_nodes, dense.num_edges, dense.num_features) == (60, 300, 8)
    assert (sparse.num_nodes, sparse.num_edges, sparse.num_features) == (6, 9, 3)
    assert found["broken"].num_nodes == 0


def test_a_name_that_does_not_lead_to_a_dataset_is_known_as_hidden(
    tmp_path: Path, small_graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("first/cora.npz", "first/two.npz", "second/cora.npz", "second/sbm.npz", "second/own.npz"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        save_npz(small_graph, tmp_path / path)
    (tmp_path / "first" / "two").mkdir()
    (tmp_path / "first" / "two" / "edges.csv").touch()
    monkeypatch.setenv("LACONIC_DATA", f"{tmp_path}/first:{tmp_path}/second")
    hidden = [str(entry.path.relative_to(tmp_path)) for entry in available() if entry.path and entry.is_hidden]
    assert hidden == ["first/two", "first/two.npz", "second/cora.npz", "second/sbm.npz"]

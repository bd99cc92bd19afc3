"""A damaged store is found out, by the name of the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.errors import StoreError
from laconic.graph import Graph
from laconic.store import Store, is_store, looks_like_store, open_store, write_store


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a ring of 60 nodes, written once for all these tests."""
    nodes = torch.arange(60)
    graph = Graph(
        edge_index=torch.stack([nodes, nodes.roll(1)]),
        x=torch.arange(480.0).reshape(60, 8),
        y=nodes % 4,
        train_mask=nodes < 20,
        val_mask=(nodes >= 20) & (nodes < 40),
        test_mask=nodes >= 40,
    )
    folder = tmp_path_factory.mktemp("pristine") / "store"
    write_store(graph, np.arange(60) % 3, folder)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pristine, tmp_path / "store")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"0")


def flip_a_bit_of_the_data(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def flip_a_bit_of_the_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


DAMAGES = [
    (truncate, "was cut short"),
    (lengthen, "has grown"),
    (flip_a_bit_of_the_data, "has been altered"),
    (flip_a_bit_of_the_header, "has been altered"),
    (Path.unlink, "cannot be read .No such file"),
]


def use_lazily(folder: Path, name: str) -> None:
    open_store(folder).chunk(1).array(name)


def use_whole(folder: Path, name: str) -> None:
    open_store(folder).to_graph()


def verify(folder: Path, name: str) -> None:
    open_store(folder, verify=True)


@pytest.mark.parametrize(("damage", "said"), DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
@pytest.mark.parametrize("use", [use_lazily, use_whole, verify])
@pytest.mark.parametrize("name", ["x", "bridge_src", "node_ids"])
def test_a_damaged_file_is_named_with_what_to_do(
    folder: Path, name: str, use: Callable[[Path, str], None], damage: Callable[[Path], None], said: str
) -> None:
    damage(folder / "chunk_00001" / f"{name}.npy")
    with pytest.raises(StoreError, match=rf"chunk_00001/{name}\.npy.*{said}.*laconic partition"):
        use(folder, name)


def test_a_trusted_store_is_still_checked_for_sizes(folder: Path) -> None:
    path = folder / "chunk_00001" / "x.npy"
    flip_a_bit_of_the_data(path)
    assert open_store(folder, trust=True).chunk(1).x.shape == (20, 8)
    truncate(path)
    with pytest.raises(StoreError, match="was cut short"):
        _ = open_store(folder, trust=True).chunk(1).x


def test_sizes_are_checked_without_reading_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from laconic.store import read

    monkeypatch.setattr(read, "check_sum", lambda *_: pytest.fail("a file was read"))
    store = open_store(folder)
    store.check_sizes()
    truncate(folder / "chunk_00002" / "bridge_src.npy")
    with pytest.raises(StoreError, match=r"chunk_00002/bridge_src\.npy was cut short"):
        store.check_sizes()


def test_contents_are_read_once_for_checking(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from laconic.store import read

    checked = []
    monkeypatch.setattr(read, "check_sum", lambda path, entry: checked.append(path.name))
    store = open_store(folder)
    for _ in range(3):
        _ = store.chunk(0).y
    assert checked == ["y.npy"]


def altered(folder: Path, change: Callable[[dict], object]) -> Path:
    fields = json.loads((folder / "manifest.json").read_text())
    change(fields)
    (folder / "manifest.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda fields: fields.pop("num_nodes"), "num_nodes is missing"),
        (lambda fields: fields["chunks"][1].pop("files"), r"chunks\[1\]\.files is missing"),
        (lambda fields: fields["chunks"][0]["files"]["x"].pop("sha256"), r"chunks\[0\]\.files\.x\.sha256 is missing"),
        (lambda fields: fields["partition"].pop("num_train"), r"partition\.num_train is missing"),
        (lambda fields: fields.update(num_nodes="60"), "num_nodes should be a whole number, but is '60'"),
        (lambda fields: fields.update(num_nodes=True), "num_nodes should be a whole number, but is True"),
        (lambda fields: fields.update(chunks={}), "chunks should be a list"),
        (lambda fields: fields.update(weight_dtype=3), "weight_dtype should be .*but is 3"),
        (lambda fields: fields.pop("checksum"), "has been altered"),
        (lambda fields: fields.update(num_nodes=61), "has been altered"),
        (lambda fields: fields.pop("format_version"), "has no format_version"),
        (lambda fields: fields.update(format_version=3), "format version 3, newer than those"),
        (lambda fields: fields.update(format_version=0), "format version 0, older than those"),
    ],
)
def test_an_altered_manifest_is_refused_by_key(folder: Path, change: Callable[[dict], object], said: str) -> None:
    with pytest.raises(StoreError, match=rf"store/manifest\.json.*{said}.*laconic"):
        open_store(altered(folder, change))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"store"'])
def test_a_manifest_that_is_none_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    with pytest.raises(StoreError, match=r"store/manifest\.json is not"):
        open_store(folder)


def test_a_folder_without_a_manifest_is_no_store(folder: Path, tmp_path: Path) -> None:
    assert is_store(folder)
    (folder / "manifest.json").unlink()
    assert looks_like_store(folder)
    assert not looks_like_store(tmp_path)
    assert not looks_like_store("x" * 5000)
    for path in (folder, tmp_path / "nowhere", tmp_path):
        assert not is_store(path)
        with pytest.raises(
            StoreError, match=r"is not a store: it has no manifest\.json. Make one with `laconic partition"
        ):
            open_store(path)


def test_a_file_of_another_shape_than_the_manifest_says_is_refused(folder: Path) -> None:
    # Written anew with a fitting checksum in the manifest: only the shapes disagree.
    store = open_store(folder, trust=True)
    path = folder / "chunk_00000" / "y.npy"
    np.save(path, np.load(path).reshape(4, 5))
    assert path.stat().st_size == store.manifest.chunks[0].files["y"].num_bytes
    with pytest.raises(
        StoreError, match=r"holds int64 of shape \(4, 5\), but the manifest says int64 of shape \(20,\)"
    ):
        _ = store.chunk(0).y


def test_a_store_can_be_moved(folder: Path, tmp_path: Path) -> None:
    moved = folder.rename(tmp_path / "elsewhere")
    store: Store = open_store(moved, verify=True)
    assert store.to_graph().num_edges == 60

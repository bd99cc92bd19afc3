import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from laconic.datasets import load_npz, save_npz
from laconic.errors import ConfigError, DataError
from laconic.graph import Graph


def arrays() -> dict[str, Any]:
    """A sound file of six nodes; each test spoils one thing."""
    return {
        "edge_index": np.array([[0, 1, 2, 3], [1, 0, 3, 2]], np.int32),
        "x": np.arange(12, dtype=np.float16).reshape(6, 2),
        "y": np.array([0, 1, 2, 0, 1, 2]),
        "train_mask": np.array([1, 1, 0, 0, 0, 0], bool),
        "val_mask": np.array([0, 0, 1, 1, 0, 0], bool),
        "test_mask": np.array([0, 0, 0, 0, 1, 1], bool),
    }


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.npz"
    np.savez(path, **{name: value for name, value in {**arrays(), **changes}.items() if value is not None})
    return path


def test_what_is_saved_comes_back(small_graph: Graph, tmp_path: Path) -> None:
    weighted = Graph(
        **{name: getattr(small_graph, name) for name in ("edge_index", "x", "y", "num_classes", "name")},
        **{f"{split}_mask": mask for split, mask in small_graph.mask_of.items()},
        edge_weight=torch.rand(small_graph.num_edges, generator=torch.Generator().manual_seed(0)),
        node_ids=torch.arange(small_graph.num_nodes) * 7 - 5,
    )
    save_npz(weighted, tmp_path / "saved.npz")
    again = load_npz(tmp_path / "saved.npz")
    for field in ("edge_index", "x", "y", "train_mask", "val_mask", "test_mask", "edge_weight", "node_ids"):
        assert torch.equal(getattr(again, field), getattr(weighted, field)), field
    assert again.num_classes == weighted.num_classes
    assert again.name == "saved"


def test_saving_leaves_nothing_but_the_file(small_graph: Graph, tmp_path: Path) -> None:
    save_npz(small_graph, tmp_path / "saved.npz")
    save_npz(small_graph, tmp_path / "saved.npz")
    assert os.listdir(tmp_path) == ["saved.npz"]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_half_written(
    small_graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_npz(small_graph, tmp_path / "saved.npz")
    before = (tmp_path / "saved.npz").read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(DataError, match=r"saved\.npz cannot be written: No space left"):
        save_npz(small_graph, tmp_path / "saved.npz")
    assert os.listdir(tmp_path) == ["saved.npz"]
    assert (tmp_path / "saved.npz").read_bytes() == before


def test_saving_into_a_folder_that_is_not_there_is_told(small_graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be written"):
        save_npz(small_graph, tmp_path / "absent" / "saved.npz")
    with pytest.raises(ConfigError, match=r"should end in \.npz"):
        save_npz(small_graph, tmp_path / "saved.npy")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_become_the_dtype_asked_for(tmp_path: Path, dtype: str) -> None:
    graph = load_npz(write(tmp_path), dtype=dtype)  # type: ignore[arg-type]
    assert str(graph.x.dtype) == f"torch.{dtype}"
    assert torch.equal(graph.x.double(), torch.arange(12.0, dtype=torch.float64).view(6, 2))


def test_sparse_features_equal_the_dense_ones(tmp_path: Path) -> None:
    dense = np.random.default_rng(0).integers(0, 3, (6, 5)).astype(np.uint8)
    rows, columns = np.nonzero(dense)
    parts = {
        "x_data": dense[rows, columns],
        "x_indices": columns.astype(np.int32),
        "x_indptr": np.concatenate([[0], np.cumsum((dense > 0).sum(axis=1))]),
        "x_shape": np.array([6, 5]),
    }
    graph = load_npz(write(tmp_path, x=None, **parts))
    assert torch.equal(graph.x, torch.from_numpy(dense).float())


def test_normalised_rows_sum_to_one_and_zeros_stay(tmp_path: Path) -> None:
    x = np.array([[1, 3], [0, 0], [-2, 2], [5, 0], [1, 1], [2, 6]], np.float32)
    graph = load_npz(write(tmp_path, x=x), normalise_features="row")
    assert graph.x.abs().sum(dim=1).tolist() == [1, 0, 1, 1, 1, 1]
    assert graph.x[0].tolist() == [0.25, 0.75]


def test_one_of_several_splits_is_chosen_by_number(tmp_path: Path) -> None:
    own = arrays()
    several = {
        f"{name}_masks": np.stack([own[f"{name}_mask"], own[f"{name}_mask"][::-1]]) for name in ("train", "test")
    }
    path = write(tmp_path, val_masks=np.stack([own["val_mask"]] * 2), **several)
    assert load_npz(path).train_mask.tolist() == [True, True, False, False, False, False]
    assert load_npz(path, split=1).train_mask.tolist() == [False, False, False, False, True, True]
    with pytest.raises(DataError, match=r"tiny\.npz: there is no split 2: train_masks is of shape \(2, 6\)"):
        load_npz(path, split=2)
    with pytest.raises(DataError, match="holds one split; split=1"):
        load_npz(write(tmp_path), split=1)


def test_several_labels_per_node_become_floats(tmp_path: Path) -> None:
    graph = load_npz(write(tmp_path, y=np.array([[0, 1, 1]] * 6, np.int8)))
    assert graph.is_multilabel
    assert graph.num_classes == 3


@pytest.mark.parametrize("name", ["edge_index", "x", "y", "train_mask", "val_mask", "test_mask"])
def test_a_missing_array_is_named_with_the_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"tiny\.npz has no .*\b{name}\b.*[Ii]t holds"):
        load_npz(write(tmp_path, **{name: None}))


def test_a_misspelt_array_is_guessed(tmp_path: Path) -> None:
    own = arrays()
    with pytest.raises(DataError, match=r"has no array 'edge_index'.*Is 'edge_indx' meant\?"):
        load_npz(write(tmp_path, edge_index=None, edge_indx=own["edge_index"]))
    with pytest.raises(DataError, match=r"has no array 'train_mask'; it holds [^?]*\.$"):
        load_npz(write(tmp_path, train_mask=None))


SPOILT = {
    "edge_index as floats": ({"edge_index": np.zeros((2, 3))}, r"edge_index should hold node numbers.*float64"),
    "edge_index out of range": (
        {"edge_index": np.array([[0], [6]])},
        r"edge_index should hold node numbers from 0 to 5",
    ),
    "edge_index negative": ({"edge_index": np.array([[0], [-1]])}, r"edge_index should hold node numbers from 0 to 5"),
    "edge_index of three rows": ({"edge_index": np.zeros((3, 2), int)}, r"edge_index should be integers of shape \(2"),
    "x as text": ({"x": np.array([["a"]] * 6)}, r"x should hold numbers"),
    "x with NaN": ({"x": np.full((6, 2), np.nan)}, r"x holds 12 value\(s\) that are NaN"),
    "x beyond float32": ({"x": np.full((6, 2), 1e300)}, r"x holds 1e\+300, too large for float32.*dtype='float64'"),
    "x too short": ({"x": np.ones((5, 2))}, r"length 5"),
    "y as floats": ({"y": np.full(6, 0.5)}, r"y should hold integer class numbers.*regression"),
    "y too short": ({"y": np.zeros(5, int)}, r"y should have 6 rows"),
    "y negative": ({"y": np.full(6, -2)}, r"y should hold class numbers"),
    "y beyond num_classes": ({"num_classes": np.array(2)}, r"y should hold class numbers from 0 to 1"),
    "num_classes as a list": ({"num_classes": np.array([2, 3])}, r"num_classes should be one integer"),
    "mask of numbers": ({"train_mask": np.array([0, 1])}, r"train_mask should be bool.*int64"),
    "empty mask": ({"val_mask": np.zeros(6, bool)}, r"val_mask is empty"),
    "overlapping masks": ({"val_mask": np.ones(6, bool)}, r"train_mask and val_mask overlap"),
    "edge features": ({"edge_attr": np.zeros((4, 2))}, r"edge_attr holds edge features"),
    "edge_weight too short": ({"edge_weight": np.ones(3)}, r"edge_weight should be floating point of length 4"),
    "edge_weight beyond float32": ({"edge_weight": np.full(4, 1e39)}, r"edge_weight holds 1e\+39, too large"),
    "mask of 0 and 1": ({"train_mask": np.ones(6, np.uint8)}, r"train_mask should be bool.*astype\(bool\)"),
    "node_ids twice": ({"node_ids": np.zeros(6, int)}, r"node_ids holds 0 6 times"),
    "node_ids too short": ({"node_ids": np.arange(5)}, r"node_ids should be int64 of length 6"),
    "y as bytes of another encoding": ({"y": np.array([b"caf\xe9"] * 6)}, r"y holds bytes that are not UTF-8.*Save it"),
    "node_ids as bytes of another encoding": (
        {"node_ids": np.array([b"\xe9%d" % row for row in range(6)])},
        r"node_ids holds bytes that are not UTF-8.*np\.char\.decode",
    ),
    "objects": ({"y": np.array([None] * 6)}, r"array 'y' holds Python objects.*np\.savez"),
}


def test_the_lines_that_convert_objects_do_so(tmp_path: Path) -> None:
    sound = load_npz(write(tmp_path))
    spoilt = {name: arrays()[name].astype(object) for name in ("edge_index", "y", "train_mask")}
    with pytest.raises(DataError, match="Python objects") as refused:
        load_npz(write(tmp_path, **spoilt))
    exec("\n".join(line.strip() for line in str(refused.value).splitlines() if line.startswith("  ")), {})
    again = load_npz(tmp_path / "tiny_converted.npz")
    for field in ("edge_index", "x", "y", "train_mask"):
        assert torch.equal(getattr(again, field), getattr(sound, field)), field


@pytest.mark.parametrize(("changes", "message"), SPOILT.values(), ids=SPOILT.keys())
def test_a_spoilt_field_is_named_with_the_file(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(DataError, match=rf"(?s){path}.*{message}"):
        load_npz(path)


SPOILT_CSR = {
    "too few rows": ({"x_indptr": np.array([0, 1, 2])}, "x_indptr should have 7 entries"),
    "falling": ({"x_indptr": np.array([0, 2, 1, 2, 2, 2, 2])}, "x_indptr should have 7 entries"),
    "empty": ({"x_indptr": np.array([], int)}, "x_indptr should have 7 entries"),
    "lengths differ": ({"x_data": np.ones(3)}, "x_data has 3 entries and x_indices 2"),
    "column out of range": ({"x_indices": np.array([0, 9])}, "x_indices should hold feature numbers from 0 to 2"),
    "floats": ({"x_indices": np.array([0.0, 1.0])}, "x_indices should be a list of integers"),
    "shape of three": ({"x_shape": np.array([6, 3, 1])}, "x_shape should be"),
    "a part missing": ({"x_shape": None}, "x_shape"),
}


@pytest.mark.parametrize(("changes", "message"), SPOILT_CSR.values(), ids=SPOILT_CSR.keys())
def test_spoilt_sparse_features_are_named_with_the_file(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    sound = {
        "x_data": np.ones(2),
        "x_indices": np.array([0, 2]),
        "x_indptr": np.array([0, 1, 2, 2, 2, 2, 2]),
        "x_shape": np.array([6, 3]),
    }
    assert load_npz(write(tmp_path, x=None, **sound)).num_features == 3
    path = write(tmp_path, x=None, **{**sound, **changes})
    with pytest.raises(DataError, match=rf"(?s){path}.*{message}"):
        load_npz(path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_cut_short_is_named(tmp_path: Path, share: float) -> None:
    path = write(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match=r"tiny\.npz"):
        load_npz(path)


def test_an_altered_array_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    content = bytearray(path.read_bytes())
    position = content.index(np.arange(12, dtype=np.float16).tobytes())
    content[position] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"tiny\.npz: array 'x' cannot be read"):
        load_npz(path)


def test_an_absent_file_and_a_folder_and_an_npy_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        load_npz(tmp_path / "absent.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        load_npz(tmp_path / "folder.npz")
    with (tmp_path / "single.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"holds one \.npy array"):
        load_npz(tmp_path / "single.npz")


def test_a_text_is_not_taken_for_a_pickled_file(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(DataError, match=r"text\.npz is not an \.npz file") as refused:
        load_npz(tmp_path / "text.npz")
    assert "Python objects" not in str(refused.value)
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(DataError, match=r"pickled\.npz: Laconic reads no pickled file"):
        load_npz(tmp_path / "pickled.npz")


@pytest.mark.parametrize("option", [{"dtype": "float8"}, {"normalise_features": "columns"}])
def test_an_option_out_of_its_choices_is_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        load_npz(write(tmp_path), **option)


NO_MASKS = {"train_mask": None, "val_mask": None, "test_mask": None}


def test_without_masks_the_split_is_random_by_seed_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, **NO_MASKS)
    with caplog.at_level("INFO"):
        graph = load_npz(path, train=0.5, val=0.3, seed=2)
    assert graph.num_of_split == {"train": 3, "val": 2, "test": 1}
    assert graph.split_origin == "random, seed 2"
    assert load_npz(write(tmp_path)).split_origin == "given"
    assert "tiny.npz has no split" in caplog.text
    again = load_npz(write(tmp_path, **NO_MASKS), train=0.5, val=0.3, seed=2)
    assert torch.equal(graph.train_mask, again.train_mask)


@pytest.mark.parametrize("name", ["train_idx", "idx_val", "splits", "testmask"])
def test_a_split_under_another_name_is_not_replaced_by_a_random_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"has no masks, but {name}, which may be its split"):
        load_npz(write(tmp_path, **NO_MASKS, **{name: np.arange(3)}))


def test_text_ids_and_labels_are_kept_and_saved(tmp_path: Path) -> None:
    names = np.array(["ann", "bob", "007", "7", "Žofie", "a b"])
    graph = load_npz(write(tmp_path, node_ids=names, y=np.array(["dog", "cat", "dog", "cat", "eel", "cat"])))
    save_npz(graph, tmp_path / "again.npz")
    for each in (graph, load_npz(tmp_path / "again.npz")):
        assert each.id_names is not None
        assert each.id_names.tolist() == names.tolist()
        assert each.class_names == ("cat", "dog", "eel")
        assert each.y.tolist() == [1, 0, 1, 0, 2, 0]


def test_bytes_are_taken_as_text(tmp_path: Path) -> None:
    ids = np.array([f"Žofie {row}".encode() for row in range(6)])
    graph = load_npz(write(tmp_path, node_ids=ids, y=np.array([b"dog", b"cat"] * 3)))
    assert graph.id_names is not None
    assert graph.id_names.tolist() == [f"Žofie {row}" for row in range(6)]
    assert graph.class_names == ("cat", "dog")


def test_ids_beyond_int64_are_kept_as_text(tmp_path: Path) -> None:
    graph = load_npz(write(tmp_path, node_ids=np.arange(6, dtype=np.uint64) + 2**63))
    assert graph.id_names is not None
    assert graph.id_names.tolist() == [str(2**63 + row) for row in range(6)]


def test_class_names_of_the_file_give_the_numbers(tmp_path: Path) -> None:
    texts = np.array(["dog", "cat"] * 3)
    assert load_npz(write(tmp_path, y=texts, class_names=np.array(["dog", "cat"]))).y.tolist() == [0, 1] * 3
    with pytest.raises(DataError, match="holds the class 'cat', which class_names does not"):
        load_npz(write(tmp_path, y=texts, class_names=np.array(["dog", "eel"])))
    with pytest.raises(DataError, match="there are 2 class_names, but num_classes is 3"):
        load_npz(write(tmp_path, class_names=np.array(["dog", "eel"]), num_classes=np.array(3)))


def test_reverse_edges_are_added_when_asked_for_and_only_to_sound_edges(tmp_path: Path) -> None:
    path = write(tmp_path, edge_index=np.array([[0, 1], [1, 2]], np.int32), edge_weight=np.array([0.5, 2.0]))
    graph = load_npz(path, add_reverse_edges=True)
    assert graph.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [0.5, 0.5, 2.0, 2.0]
    with pytest.raises(DataError, match="node numbers from 0 to 5"):
        load_npz(write(tmp_path, edge_index=np.array([[0], [7]])), add_reverse_edges=True)

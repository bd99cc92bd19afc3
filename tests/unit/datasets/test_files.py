import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from laconic.datasets import load, load_files
from laconic.errors import ConfigError, DataError

IDS = [70, -4, 12, 9000000000, 5, 1]
SPLIT = ["train", "train", "val", "none", "test", "test"]


def write_csv(folder: Path, changes: dict[str, str | None]) -> Path:
    """A sound folder with ids of its own, in which edges, labels and split name nodes in other orders than features."""
    files: dict[str, str | None] = {
        "edges.csv": "source,destination\n70,-4\n-4,12\n9000000000,5\n",
        "features.csv": "node,a,b\n" + "".join(f"{node},{row},{row / 2}\n" for row, node in enumerate(IDS)),
        "labels.csv": "node,label\n1,2\n5,1\n12,0\n-4,1\n70,0\n",
        "split.csv": "node,split\n" + "".join(f"{n},{s}\n" for n, s in zip(IDS[::-1], SPLIT[::-1], strict=True)),
    }
    for name, text in {**files, **changes}.items():
        if text is not None:
            (folder / name).write_text(text)
    return folder


def test_ids_of_any_integers_are_matched_across_the_files_and_kept(tmp_path: Path) -> None:
    graph = load_files(write_csv(tmp_path, {}))
    assert graph.node_ids.tolist() == IDS
    assert graph.edge_index.tolist() == [[0, 1, 3], [1, 2, 4]]
    assert graph.x.tolist() == [[row, row / 2] for row in range(6)]
    assert graph.y.tolist() == [0, 1, 0, -1, 1, 2]
    assert [mask.nonzero().flatten().tolist() for mask in graph.mask_of.values()] == [[0, 1], [2], [4, 5]]
    assert graph.name == tmp_path.name


def same_graph(folder: Path, suffix: str) -> None:
    """Writes one graph of six nodes 0..5 in the form that `suffix` says."""
    tables: dict[str, Any] = {
        "edges": np.array([[0, 1], [2, 3], [4, 5], [5, 0]]),
        "features": np.arange(18.0).reshape(6, 3),
        "labels": np.array([[0], [1], [2], [0], [1], [2]]),
        "split": np.array([[word] for word in SPLIT]),
    }
    for name, values in tables.items():
        names = {"edges": ["source", "target"], "features": ["a", "b", "c"]}.get(name, [name])
        table = pyarrow.table({column: values[:, i] for i, column in enumerate(names)})
        if suffix == ".npy":
            np.save(folder / f"{name}.npy", values[:, 0] if name == "split" else values)
        elif suffix == ".parquet":
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
        elif suffix == ".csv.gz":
            with pyarrow.output_stream(folder / f"{name}.csv.gz", compression="gzip") as stream:
                pyarrow.csv.write_csv(table, stream)
        else:
            np.savetxt(folder / f"{name}.csv", values, delimiter=",", fmt="%s")


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".npy"])
def test_every_form_of_file_gives_the_same_graph(tmp_path: Path, suffix: str) -> None:
    same_graph(tmp_path, suffix)
    graph = load_files(tmp_path)
    assert graph.edge_index.tolist() == [[0, 2, 4, 5], [1, 3, 5, 0]]
    assert graph.x.tolist() == np.arange(18.0).reshape(6, 3).tolist()
    assert graph.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert graph.train_mask.tolist() == [True, True, False, False, False, False]
    assert graph.node_ids.tolist() == list(range(6))


@pytest.mark.parametrize("first", ["0,1", '"0","1"', "\ufeff0,1", '\ufeff"0","1"', " 0, 1"])
def test_a_first_line_of_numbers_is_an_edge_and_no_header(tmp_path: Path, first: str) -> None:
    same_graph(tmp_path, ".csv")
    (tmp_path / "edges.csv").write_text(f"{first}\n2,3\n", encoding="utf-8")
    assert load_files(tmp_path).edge_index.tolist() == [[0, 2], [1, 3]]


def test_a_graph_may_have_no_edge(tmp_path: Path) -> None:
    assert load_files(write_csv(tmp_path, {"edges.csv": "source,destination\n"})).num_edges == 0


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()])
def test_words_are_read_whatever_wrote_the_parquet_file(tmp_path: Path, kind: pyarrow.DataType) -> None:
    same_graph(tmp_path, ".parquet")
    words = pyarrow.table({"split": pyarrow.array([*SPLIT[:3], None, *SPLIT[4:]], kind)})
    pyarrow.parquet.write_table(words, tmp_path / "split.parquet")
    assert [int(mask.sum()) for mask in load_files(tmp_path).mask_of.values()] == [2, 1, 2]


def test_a_parquet_column_of_lists_is_a_row_of_features_each(tmp_path: Path) -> None:
    same_graph(tmp_path, ".parquet")
    rows = np.arange(18.0).reshape(6, 3)
    pyarrow.parquet.write_table(pyarrow.table({"f": [list(row) for row in rows]}), tmp_path / "features.parquet")
    assert load_files(tmp_path).x.tolist() == rows.tolist()
    uneven = pyarrow.table({"f": [[1.0], [1.0, 2.0], [1.0], [1.0], [1.0], [1.0]]})
    pyarrow.parquet.write_table(uneven, tmp_path / "features.parquet")
    with pytest.raises(DataError, match=r"features\.parquet: column f holds lists of different lengths"):
        load_files(tmp_path)


def test_an_array_of_edges_may_lie_either_way(tmp_path: Path) -> None:
    same_graph(tmp_path, ".npy")
    standing = load_files(tmp_path).edge_index
    np.save(tmp_path / "edges.npy", np.array([[0, 2, 4, 5], [1, 3, 5, 0]]))
    assert torch.equal(load_files(tmp_path).edge_index, standing)


def test_a_nodes_file_gives_the_ids_of_arrays(tmp_path: Path) -> None:
    same_graph(tmp_path, ".npy")
    np.save(tmp_path / "nodes.npy", np.array([10, 20, 30, 40, 50, 60]))
    np.save(tmp_path / "edges.npy", np.array([[10, 60, 30], [20, 10, 40]]))
    graph = load_files(tmp_path)
    assert graph.node_ids.tolist() == [10, 20, 30, 40, 50, 60]
    assert graph.edge_index.tolist() == [[0, 5, 2], [1, 0, 3]]


def test_a_third_column_of_edges_is_their_weight_whatever_the_order_of_columns(tmp_path: Path) -> None:
    graph = load_files(write_csv(tmp_path, {"edges.csv": "weight,destination,source\n0.5,-4,70\n2,12,-4\n"}))
    assert graph.edge_index.tolist() == [[0, 1], [1, 2]]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [0.5, 2.0]


def test_reverse_edges_are_added_when_asked_for(tmp_path: Path) -> None:
    graph = load_files(write_csv(tmp_path, {}), add_reverse_edges=True)
    assert graph.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [3, 4], [4, 3]]


def test_without_a_split_file_the_split_is_random_by_seed_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_csv(tmp_path, {"split.csv": None})
    with caplog.at_level(logging.INFO):
        graph = load_files(folder, train=0.4, val=0.4, seed=1)
    assert [int(mask.sum()) for mask in graph.mask_of.values()] == [2, 2, 1]
    assert f"{folder} has no split" in caplog.text
    assert torch.equal(graph.train_mask, load_files(folder, train=0.4, val=0.4, seed=1).train_mask)


def test_several_label_columns_are_several_labels_per_node(tmp_path: Path) -> None:
    rows = "".join(f"{node},{row % 2},1\n" for row, node in enumerate(IDS))
    graph = load_files(write_csv(tmp_path, {"labels.csv": f"node,first,second\n{rows}"}))
    assert graph.is_multilabel
    assert graph.y.tolist() == [[row % 2, 1] for row in range(6)]


def test_an_empty_label_is_no_label(tmp_path: Path) -> None:
    graph = load_files(write_csv(tmp_path, {"labels.csv": "node,label\n70,0\n-4,1\n12,0\n9000000000,\n5,1\n1,2\n"}))
    assert graph.y.tolist() == [0, 1, 0, -1, 1, 2]


SPOILT: dict[str, tuple[dict[str, str | None], str]] = {
    "no edges": ({"edges.csv": None}, "has no edges file"),
    "no features": ({"features.csv": None}, "has no features file"),
    "no labels": ({"labels.csv": None}, "has no labels file"),
    "two files of edges": ({"edges.parquet": ""}, r"holds edges\.csv and edges\.parquet"),
    "an unknown node": ({"edges.csv": "70,8\n"}, r"edges\.csv names 1 node\(s\) that features\.csv does not.*being 8"),
    "edges as floats": ({"edges.csv": "70,1.5\n"}, r"edges\.csv names 1 node\(s\).*being 1\.5, in row 0"),
    "edges as words": ({"edges.csv": "source,destination\nme,you\n"}, r"edges\.csv names 1 node\(s\).*being me"),
    "ids with a point": ({"edges.csv": "from,to\n70.0,1.0\n"}, r"being 70\.0, in row 0.*without a point: 70\."),
    "one column": ({"edges.csv": "70\n1\n"}, r"edges\.csv: no column is known as the target.*by commas"),
    "tabs": ({"edges.csv": "source\tdestination\n70\t1\n"}, r"has column 'source\\tdestination'.*by commas"),
    "edges without an end": (
        {"edges.csv": "source,target\n70,1\n70,\n"},
        r"edges\.csv: column target: row 1 has no node id",
    ),
    "names in place of classes": (
        {"labels.csv": "node,label\n" + "".join(f"{n},person {n}\n" for n in range(120))},
        r"labels\.csv holds 120 different texts for 120 nodes, such as 'person 0': too many to be classes",
    ),
    "ragged rows": ({"edges.csv": "70,1\n70,1,5\n"}, r"edges\.csv cannot be read"),
    "an empty file": ({"edges.csv": ""}, r"edges\.csv cannot be read"),
    "a node twice": ({"features.csv": "node,a\n1,0\n1,0\n"}, r"features\.csv names node 1 2 times"),
    "words as features": ({"features.csv": "node,a\n70,red\n"}, r"features\.csv: column a should hold numbers"),
    "no feature column": ({"features.csv": "node\n70\n"}, r"features\.csv holds no features"),
    "a label twice": ({"labels.csv": "node,label\n70,0\n70,1\n"}, r"labels\.csv has several rows for one node"),
    "labels without ids": ({"labels.csv": "label\n0\n1\n"}, r"labels\.csv has 2 rows, but features\.csv has 6 nodes"),
    "labels as fractions": ({"labels.csv": "node,label\n70,0.5\n"}, r"labels\.csv should hold integer class numbers"),
    "a masked node without label": ({"labels.csv": "node,label\n70,0\n"}, "y should hold class numbers"),
    "an unknown split": ({"split.csv": "node,split\n70,valid\n"}, r"split\.csv should hold the words .* got valid"),
    "splits as numbers": ({"split.csv": "node,split\n70,1\n"}, r"split\.csv should hold the words"),
    "no test node": ({"split.csv": "node,split\n70,train\n12,val\n"}, "test_mask is empty"),
    "ids in two places": ({"nodes.csv": "node\n1\n"}, r"both nodes\.csv and a column of features\.csv"),
    "a column twice": ({"features.csv": "node,a,a\n70,1,2\n"}, r"features\.csv has two columns called 'a'"),
    "not finite": ({"features.csv": "node,a\n" + "".join(f"{n},nan\n" for n in IDS)}, "x holds 6 value"),
    "not an array": ({"split.csv": None, "split.npy": "train"}, r"split\.npy is not an \.npy file"),
    "not Parquet": ({"split.csv": None, "split.parquet": "node"}, r"split\.parquet cannot be read"),
}


@pytest.mark.parametrize(("changes", "message"), SPOILT.values(), ids=SPOILT.keys())
def test_a_spoilt_file_is_named(tmp_path: Path, changes: dict[str, str | None], message: str) -> None:
    with pytest.raises(DataError, match=rf"(?s){tmp_path}.*{message}"):
        load_files(write_csv(tmp_path, changes))


def test_a_nodes_file_of_another_length_is_named(tmp_path: Path) -> None:
    same_graph(tmp_path, ".npy")
    np.save(tmp_path / "nodes.npy", np.arange(5))
    with pytest.raises(DataError, match=r"nodes\.npy names 5 nodes, but there are 6 rows of features"):
        load_files(tmp_path)


def test_edges_out_of_range_are_named_where_nodes_have_no_ids(tmp_path: Path) -> None:
    same_graph(tmp_path, ".npy")
    np.save(tmp_path / "edges.npy", np.array([[0, 6, 1], [1, 2, -1]]))
    with pytest.raises(DataError, match=r"edges\.npy names 1 node\(s\) that features\.npy does not.*6, in row 1"):
        load_files(tmp_path)
    np.save(tmp_path / "edges.npy", np.zeros((3, 3), np.int64))
    with pytest.raises(DataError, match=r"edges\.npy should be of shape \(2, edges\) or \(edges, 2\), got \(3, 3\)"):
        load_files(tmp_path)


@pytest.mark.parametrize("role", ["edges", "features", "labels", "split"])
def test_python_objects_in_an_array_are_refused_with_lines_that_convert_it(tmp_path: Path, role: str) -> None:
    same_graph(tmp_path, ".npy")
    sound = load_files(tmp_path)
    path = tmp_path / f"{role}.npy"
    np.save(path, np.load(path).astype(object))
    with pytest.raises(DataError, match=r"Python objects") as refused:
        load_files(tmp_path)
    code = "\n".join(line.strip() for line in str(refused.value).splitlines() if line.startswith("  "))
    exec(code, {})
    again = load_files(tmp_path)
    assert torch.equal(again.edge_index, sound.edge_index)
    assert torch.equal(again.x, sound.x)
    assert torch.equal(again.y, sound.y)
    assert torch.equal(again.train_mask, sound.train_mask)


PEOPLE = ["ann", "bob", "007", "7", "Žofie", "a b"]


def write_people(folder: Path, changes: dict[str, str | None]) -> Path:
    """A sound folder whose ids and labels are text."""
    files: dict[str, str | None] = {
        "edges.csv": "target,source\nbob,ann\n7,007\na b,Žofie\n",
        "features.csv": "id,a\n" + "".join(f"{name},{row}\n" for row, name in enumerate(PEOPLE)),
        "labels.csv": "node_id,class\na b,dog\nann,cat\n007,dog\n7,cat\nbob,\n",
        "split.csv": "node,split\nann,train\n007,val\n7,test\na b,train\n",
    }
    return write_csv(folder, {**files, **changes})


def test_text_ids_and_labels_are_matched_and_kept_as_they_are(tmp_path: Path) -> None:
    graph = load_files(write_people(tmp_path, {}))
    assert graph.id_names is not None
    assert graph.id_names.tolist() == PEOPLE
    assert graph.node_ids.tolist() == list(range(6))
    # The header says target first: nothing is reversed.
    assert graph.edge_index.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert graph.class_names == ("cat", "dog")
    assert graph.y.tolist() == [0, -1, 1, 0, -1, 1]
    assert graph.num_classes == 2


def test_what_each_column_was_taken_for_is_told_once_for_each_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        load_files(
            write_people(
                tmp_path,
                {
                    "edges.csv": "ann,bob,0.5\n".replace("ann,bob", "0,1"),
                    "features.csv": None,
                    "nodes.csv": "id,a,b\n" + "".join(f"{row},1,2\n" for row in range(6)),
                    "labels.csv": "label\n" + "0\n1\n" * 3,
                    "split.csv": None,
                },
            )
        )
    assert [record.getMessage() for record in caplog.records][:3] == [
        "nodes.csv: node <- id, 2 features <- a, b.",
        "edges.csv (without header): source <- 0, target <- 1, weight <- 2.",
        "labels.csv: nodes by row number, label <- label.",
    ]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npy"])
def test_ids_beyond_int64_are_kept_exactly(tmp_path: Path, suffix: str) -> None:
    same_graph(tmp_path, ".npy")
    ids = np.array([2**63 + 2**11 * row + 1 for row in range(6)], np.uint64)
    ends = ids[np.array([[0, 2, 4, 5], [1, 3, 5, 0]])]
    (tmp_path / "edges.npy").unlink()
    for name, columns in (("nodes", {"id": ids}), ("edges", {"source": ends[0], "target": ends[1]})):
        if suffix == ".npy":
            np.save(tmp_path / f"{name}.npy", np.stack(list(columns.values())) if name == "edges" else ids)
        elif suffix == ".csv":
            pyarrow.csv.write_csv(pyarrow.table(columns), tmp_path / f"{name}.csv")
        else:
            pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
    graph = load_files(tmp_path)
    assert graph.id_names is not None
    assert graph.id_names.tolist() == [str(number) for number in ids.tolist()]
    assert graph.edge_index.tolist() == [[0, 2, 4, 5], [1, 3, 5, 0]]
    assert int(graph.node_ids.min()) >= 0


@pytest.mark.parametrize(
    "edges",
    [
        "edge_id,source,target\n5,70,-4\n6,-4,12\n",
        "source,target,timestamp\n70,-4,1\n-4,12,2\n",
        ",source,target\n0,70,-4\n1,-4,12\n",
        "citing,cited,when\n70,-4,now\n-4,12,then\n",
    ],
)
def test_an_unknown_column_is_refused_with_a_line_that_loads_the_same_folder(tmp_path: Path, edges: str) -> None:
    folder = write_csv(tmp_path, {"edges.csv": edges})
    with pytest.raises(DataError, match=r"edges\.csv: .*column") as refused:
        load_files(folder)
    line = next(line for line in str(refused.value).splitlines() if line.startswith("  "))
    graph = load(line.strip().strip('"'))
    assert graph.edge_index.tolist() == [[0, 1], [1, 2]]
    assert graph.edge_weight is None


def test_text_among_the_features_is_refused_with_a_line_that_leaves_it_out(tmp_path: Path) -> None:
    rows = "".join(f"{node},{row},Oslo,x\n" for row, node in enumerate(IDS))
    folder = write_csv(tmp_path, {"features.csv": f"id,a,city,note.1\n{rows}"})
    with pytest.raises(DataError, match="column city should hold numbers, got text such as 'Oslo'") as refused:
        load_files(folder)
    line = str(refused.value).splitlines()[1].strip().strip('"')
    assert load(line).x.tolist() == [[row] for row in range(6)]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_names_with_points_spaces_and_quotes_are_read(tmp_path: Path, suffix: str) -> None:
    folder = write_csv(tmp_path, {"features.csv": None})
    columns = {"id": IDS, "f.1": [1.0] * 6, "f.2": [2.0] * 6, "a, b": [3.0] * 6, 'the "best"': [4.0] * 6}
    if suffix == "csv":
        pyarrow.csv.write_csv(pyarrow.table(columns), folder / "features.csv")
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / "features.parquet")
    assert load_files(folder).x[0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("late", ["0.5", "7"])
def test_what_a_column_holds_is_decided_by_all_of_it(tmp_path: Path, late: str) -> None:
    num_nodes = 200_000
    rows = "1\n" * (num_nodes - 1)
    (tmp_path / "edges.csv").write_text("0,1\n")
    (tmp_path / "features.csv").write_text(f"a,b\n{rows.replace('1', '100,100')}{late},1\n")
    (tmp_path / "labels.csv").write_text("label\n" + "10000000\n" * (num_nodes - 1) + "other\n")
    graph = load_files(tmp_path)
    assert graph.x[-1].tolist() == [float(late), 1.0]
    assert graph.class_names == ("10000000", "other")


def test_a_column_that_no_file_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Unknown column 'timestamp'"):
        load_files(write_csv(tmp_path, {}), columns="ignore=timestamp")


def test_one_table_may_hold_all_that_is_known_of_the_nodes(tmp_path: Path) -> None:
    rows = "".join(
        f"{p},{i},{'dog' if i % 2 else 'cat'},{s}\n" for i, (p, s) in enumerate(zip(PEOPLE, SPLIT, strict=True))
    )
    none = dict.fromkeys(("features.csv", "labels.csv", "split.csv"))
    folder = write_people(tmp_path, {**none, "nodes.csv": f"id,a,label,split\n{rows}"})
    graph = load_files(folder)
    assert graph.x.tolist() == [[row] for row in range(6)]
    assert graph.y.tolist() == [0, 1] * 3
    assert graph.split_origin == "given"
    assert [mask.nonzero().flatten().tolist() for mask in graph.mask_of.values()] == [[0, 1], [2], [4, 5]]
    (folder / "labels.csv").write_text("label\n" + "cat\ndog\n" * 3)
    with pytest.raises(DataError, match=r"column for the label, and there is labels\.csv") as refused:
        load_files(folder)
    line = str(refused.value).splitlines()[-1].strip().strip('"')
    assert load(line).y.tolist() == [0, 1] * 3


@pytest.mark.parametrize(("column", "columns"), [("class", ""), ("kind", "label=features.kind"), (" Class ", "")])
def test_a_label_in_two_places_is_refused_with_a_line_that_keeps_one(tmp_path: Path, column: str, columns: str) -> None:
    rows = "".join(f"{name},{row},cat\n" for row, name in enumerate(PEOPLE))
    folder = write_people(tmp_path, {"features.csv": f"id,a,{column}\n{rows}"})
    with pytest.raises(DataError, match=r"column for the label, and there is labels\.csv") as refused:
        load_files(folder, columns=columns)
    line = str(refused.value).splitlines()[-1].strip().strip('"')
    assert load(line).y.tolist() == [0, -1, 1, 0, -1, 1]


def test_labels_without_a_header_are_told_which_line_was_taken_for_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has 5 rows, .* Its first line, cat, was taken for a header"):
        load_files(write_people(tmp_path, {"labels.csv": "cat\n" + "dog\n" * 5, "split.csv": None}))


def test_names_of_several_labels_are_kept(tmp_path: Path) -> None:
    rows = "".join(f"{node},{row % 2},1\n" for row, node in enumerate(IDS))
    assert load_files(write_csv(tmp_path, {"labels.csv": f"node,red,blue\n{rows}"})).class_names == ("red", "blue")

"""A Graph that exists is sound: every wrong field is refused with its name, what it held and what to do."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from laconic.errors import DataError
from laconic.graph import Graph, GraphChange, Shard
from laconic.graph.change import NewNodes


def changed(graph, **fields):
    return dataclasses.replace(graph, **fields)


def put(tensor, index, value):
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


def test_a_graph_knows_its_sizes(small_graph):
    assert (small_graph.num_nodes, small_graph.num_edges, small_graph.num_features) == (60, 300, 8)
    assert not small_graph.is_multilabel
    assert small_graph.node_ids.tolist() == list(range(60))


def test_classes_are_counted_when_not_given(small_graph):
    assert changed(small_graph, num_classes=0).num_classes == int(small_graph.y.max()) + 1


def test_a_graph_cannot_be_changed(small_graph):
    with pytest.raises(dataclasses.FrozenInstanceError):
        small_graph.x = small_graph.x * 2


def test_compressed_rows_give_the_same_graph(small_graph):
    adjacency = small_graph.adjacency
    fields = {
        name: getattr(small_graph, name) for name in ("x", "y", "train_mask", "val_mask", "test_mask", "num_classes")
    }
    twin = Graph.from_csr(adjacency.indptr, adjacency.indices, **fields)
    assert sorted(twin.edge_index.t().tolist()) == sorted(small_graph.edge_index.t().tolist())
    assert np.array_equal(twin.adjacency.indices, adjacency.indices)


def test_the_whole_shard_shares_the_graphs_tensors(small_graph):
    shard = Shard.whole(small_graph)
    assert shard.x is small_graph.x
    assert shard.edge_index is small_graph.edge_index
    assert shard.num_owned == shard.num_rows == 60
    assert shard.train_rows.tolist() == small_graph.train_mask.nonzero().squeeze(1).tolist()


BAD_FIELDS = {
    "edge too high": (
        lambda g: {"edge_index": put(g.edge_index, (0, 7), 60)},
        r"edge 7: 60 -> .*0 to 59|0 to 59.*edge 7",
    ),
    "edge negative": (lambda g: {"edge_index": put(g.edge_index, (1, 3), -1)}, "edge 3"),
    "edge dtype": (lambda g: {"edge_index": g.edge_index.float()}, "integers of shape .*got float32"),
    "edge shape": (lambda g: {"edge_index": g.edge_index.t()}, r"got int64 of shape \(300, 2\)"),
    "x NaN": (lambda g: {"x": put(g.x, (4, 2), float("nan"))}, "node 4, feature 2"),
    "x infinite": (lambda g: {"x": put(g.x, (4, 2), float("inf"))}, "NaN or infinite"),
    "x integers": (lambda g: {"x": g.x.long()}, "x should be floating point"),
    "x without columns": (lambda g: {"x": g.x[:, :0]}, "no features"),
    "y too short": (lambda g: {"y": g.y[:-1]}, "y should have 60 rows"),
    "y dtype": (lambda g: {"y": g.y.int()}, "y should be int64 class numbers"),
    "y beyond the classes": (lambda g: {"y": put(g.y, 9, 4)}, "node 9 has 4"),
    "y negative": (lambda g: {"y": put(g.y, 9, -3)}, "node 9 has -3"),
    "unlabelled in a mask": (lambda g: {"y": put(g.y, 9, -1)}, "node 9 has -1"),
    "no training node": (lambda g: {"train_mask": torch.zeros(60, dtype=torch.bool)}, "no training node"),
    "no validation node": (lambda g: {"val_mask": torch.zeros(60, dtype=torch.bool)}, "no validation node"),
    "masks overlap": (lambda g: {"val_mask": g.val_mask | g.train_mask}, "train_mask and val_mask overlap in 30"),
    "mask dtype": (lambda g: {"test_mask": g.test_mask.long()}, "test_mask should be bool of length 60"),
    "mask length": (lambda g: {"test_mask": g.test_mask[:50]}, "test_mask should be bool of length 60"),
    "weight length": (lambda g: {"edge_weight": torch.ones(10)}, "edge_weight should be floating point of length 300"),
    "weight NaN": (lambda g: {"edge_weight": torch.full((300,), float("nan"))}, "edge_weight holds NaN"),
    "multi-label values": (lambda g: {"y": torch.full((60, 3), 0.5), "num_classes": 0}, "0 and 1 only"),
    "multi-label count": (lambda g: {"y": torch.zeros(60, 3), "num_classes": 5}, "num_classes is 5, but y has 3"),
    "x of one axis": (lambda g: {"x": g.x[:, 0]}, r"got float32 of shape \(60,\)\. Give each node a row of features"),
    "node ids twice": (lambda g: {"node_ids": put(torch.arange(60), 7, 3)}, "node_ids holds 3 2 times"),
    "class codes": (
        lambda g: {"y": put(g.y, 9, 10**12), "num_classes": 0},
        r"node 9 is of class 1000000000000.*Number the 5 classes from 0",
    ),
    "node ids": (lambda g: {"node_ids": torch.arange(10)}, "node_ids should be int64 of length 60"),
}


@pytest.mark.parametrize("case", BAD_FIELDS)
def test_a_wrong_field_is_refused_by_name(case, small_graph):
    make, message = BAD_FIELDS[case]
    with pytest.raises(DataError, match=message) as error:
        changed(small_graph, **make(small_graph))
    assert str(error.value).startswith("random: ")


def test_a_node_in_no_mask_may_have_no_label(small_graph):
    train_mask = put(small_graph.train_mask, slice(None), False)
    train_mask[small_graph.train_mask.nonzero()[1:]] = True
    outside = int(small_graph.train_mask.nonzero()[0])
    graph = changed(small_graph, train_mask=train_mask, y=put(small_graph.y, outside, -1))
    assert int(graph.y[outside]) == -1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda g: {"x": put(g.x, (4, 2), float("nan"))}, r"node 4 \(id 104\), feature 2"),
        (lambda g: {"y": put(g.y, 9, -3)}, r"node 9 \(id 109\) has -3"),
        (lambda g: {"val_mask": g.val_mask | g.train_mask}, r"the first being node 0 \(id 100\)"),
    ],
)
def test_a_node_with_an_id_of_its_own_is_named_by_it_too(spoil, message, small_graph):
    graph = changed(small_graph, node_ids=torch.arange(100, 160))
    with pytest.raises(DataError, match=message):
        changed(graph, **spoil(graph))


def test_a_few_nodes_of_many_classes_are_fine(small_graph):
    assert changed(small_graph, y=put(small_graph.y, 9, 171), num_classes=0).num_classes == 172
    assert changed(small_graph, y=put(small_graph.y, 9, 5000), num_classes=10**6).num_classes == 10**6


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_edges_of_any_narrow_integers_are_taken(dtype: torch.dtype, small_graph: Graph) -> None:
    graph = dataclasses.replace(small_graph, edge_index=small_graph.edge_index.to(dtype))
    assert torch.equal(graph.edge_index, small_graph.edge_index)


def test_a_change_takes_int32_too() -> None:
    edges, ids = torch.tensor([[1], [2]], dtype=torch.int32), torch.tensor([7], dtype=torch.int32)
    nodes = NewNodes(ids=ids, x=torch.ones(1, 2))
    change = GraphChange(add_edges=edges, remove_edges=edges, remove_nodes=ids, add_nodes=nodes)
    for part in (change.add_edges, change.remove_edges, change.remove_nodes, change.new_ids):
        assert part.dtype == torch.int64


NAMES = np.array([f"node {row}" for row in range(60)])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id_names": NAMES[:59]}, "id_names should be an array of 60 texts"),
        ({"id_names": np.arange(60)}, "id_names should be an array of 60 texts.*int64"),
        ({"id_names": np.array(["same"] * 60)}, "id_names holds 'same' 60 times"),
        ({"id_names": np.array([*NAMES[1:], "x" * 1025])}, "id_names holds 'xxx.*'...; an id is a text of 1 to 1024"),
        ({"id_names": np.array([*NAMES[1:], ""])}, "id_names holds ''"),
        ({"class_names": ("a", "b", "c")}, "there are 3 class_names, but num_classes is 4"),
        ({"class_names": ("a", "b", "c", "c")}, "class_names should be different texts"),
    ],
)
def test_names_that_do_not_fit_are_refused(small_graph: Graph, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        dataclasses.replace(small_graph, **fields)


def test_errors_name_a_node_by_its_text(small_graph: Graph) -> None:
    x = small_graph.x.clone()
    x[3, 1] = float("nan")
    with pytest.raises(DataError, match=r"the first at node 3 \(id node 3\)"):
        dataclasses.replace(small_graph, x=x, id_names=NAMES)

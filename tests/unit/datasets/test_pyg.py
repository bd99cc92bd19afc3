import logging
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from laconic.datasets import from_pyg
from laconic.errors import DataError
from laconic.graph import Graph


def to_data(graph: Graph, **changes: Any) -> Data:
    masks = {f"{split}_mask": mask for split, mask in graph.mask_of.items()}
    fields = {"edge_index": graph.edge_index, "x": graph.x, "y": graph.y, **masks, **changes}
    return Data(**{name: value for name, value in fields.items() if value is not None})


class OneGraph(InMemoryDataset):  # type: ignore[misc]
    """An in-memory dataset as PyG's own are, without files."""

    def __init__(self, *graphs: Data, name: str = "One") -> None:
        super().__init__()
        self.name = name
        self.data, self.slices = self.collate(list(graphs))


def test_a_data_object_gives_its_graph(small_graph: Graph) -> None:
    graph = from_pyg(to_data(small_graph), name="mine")
    for field in ("edge_index", "x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(graph, field), getattr(small_graph, field)), field
    assert graph.name == "mine"
    assert graph.edge_weight is None


def test_a_dataset_of_one_graph_gives_it_under_its_name(small_graph: Graph) -> None:
    graph = from_pyg(OneGraph(to_data(small_graph)))
    assert graph.name == "One"
    assert torch.equal(graph.x, small_graph.x)


def test_a_dataset_of_two_graphs_is_refused(small_graph: Graph) -> None:
    data = to_data(small_graph)
    with pytest.raises(DataError, match="PyG dataset One holds 2 graphs"):
        from_pyg(OneGraph(data, data))


def test_edge_weight_is_kept(small_graph: Graph) -> None:
    weight = torch.rand(small_graph.num_edges, generator=torch.Generator().manual_seed(0))
    graph = from_pyg(to_data(small_graph, edge_weight=weight))
    assert graph.edge_weight is not None
    assert torch.equal(graph.edge_weight, weight)


def test_one_column_of_labels_and_sparse_features_are_taken(small_graph: Graph) -> None:
    graph = from_pyg(to_data(small_graph, y=small_graph.y[:, None], x=small_graph.x.to_sparse()))
    assert torch.equal(graph.y, small_graph.y)
    assert torch.equal(graph.x, small_graph.x)


def test_one_of_several_splits_is_chosen_by_number(small_graph: Graph) -> None:
    stacked = {f"{split}_mask": torch.stack([mask, mask.flip(0)], 1) for split, mask in small_graph.mask_of.items()}
    data = to_data(small_graph, **stacked)
    assert torch.equal(from_pyg(data).train_mask, small_graph.train_mask)
    assert torch.equal(from_pyg(data, split=1).train_mask, small_graph.train_mask.flip(0))
    with pytest.raises(DataError, match="train_mask has 2 splits, so there is no split 2"):
        from_pyg(data, split=2)
    with pytest.raises(DataError, match="train_mask holds one split"):
        from_pyg(to_data(small_graph), split=1)


def test_without_masks_the_split_is_random_and_told(small_graph: Graph, caplog: pytest.LogCaptureFixture) -> None:
    data = to_data(small_graph, train_mask=None, val_mask=None, test_mask=None)
    with caplog.at_level(logging.INFO):
        graph = from_pyg(data, train=0.5, val=0.25)
    assert [int(mask.sum()) for mask in graph.mask_of.values()] == [30, 15, 15]
    assert "PyG data pyg has no split" in caplog.text


def test_a_missing_mask_beside_others_is_named(small_graph: Graph) -> None:
    with pytest.raises(DataError, match="lacks val_mask"):
        from_pyg(to_data(small_graph, val_mask=None))


def test_edge_features_and_heterogeneous_data_are_refused_by_name(small_graph: Graph) -> None:
    with pytest.raises(DataError, match=r"edge_attr holds edge features.*edge_weight"):
        from_pyg(to_data(small_graph, edge_attr=torch.ones(small_graph.num_edges, 2)))
    with pytest.raises(DataError, match="HeteroData"):
        from_pyg(HeteroData())


@pytest.mark.parametrize("field", ["x", "y", "edge_index"])
def test_a_missing_tensor_is_named(small_graph: Graph, field: str) -> None:
    with pytest.raises(DataError, match=rf"PyG data pyg: {field} should be a tensor"):
        from_pyg(to_data(small_graph, **{field: None}))


def test_adj_t_without_edge_index_is_refused_by_name(small_graph: Graph) -> None:
    with pytest.raises(DataError, match="adj_t cannot be used"):
        from_pyg(to_data(small_graph, edge_index=None, adj_t=torch.eye(60)))


def test_what_is_no_pyg_object_is_refused(small_graph: Graph) -> None:
    with pytest.raises(DataError, match="got dict"):
        from_pyg({"x": small_graph.x})


def test_values_to_be_estimated_are_refused(small_graph: Graph) -> None:
    with pytest.raises(DataError, match=r"PyG data pyg: y should hold integer class numbers.*regression"):
        from_pyg(to_data(small_graph, y=torch.full((60,), 0.5)))


def test_int32_edges_are_taken_and_reverse_edges_added(small_graph: Graph) -> None:
    plain = from_pyg(to_data(small_graph, edge_index=small_graph.edge_index.int()))
    assert torch.equal(plain.edge_index, small_graph.edge_index)
    both = from_pyg(to_data(small_graph, edge_index=torch.tensor([[0, 1], [1, 2]]).int()), add_reverse_edges=True)
    assert both.edge_index.T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert from_pyg(to_data(small_graph)).split_origin == "given"

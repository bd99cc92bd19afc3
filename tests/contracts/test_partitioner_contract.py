"""What every partitioner promises. A new member is picked up from the table; it needs no test of its own for these."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.graph import Graph
from laconic.partitioners import PARTITIONERS, Given, Partitioner, assign_parts
from laconic.specs import format_spec, parse_spec

NAMES = sorted(PARTITIONERS)


@pytest.fixture(params=NAMES)
def partitioner(request: pytest.FixtureRequest) -> Partitioner:
    return PARTITIONERS[request.param]()


def ready(partitioner: Partitioner, graph: Graph, num_parts: int, tmp_path: Path) -> Partitioner:
    """The same partitioner, with the file that it reads put in place if it reads one."""
    if not isinstance(partitioner, Given):
        return partitioner
    path = tmp_path / f"parts_{graph.num_nodes}_{num_parts}.npy"
    np.save(path, np.arange(graph.num_nodes) * 7 % num_parts)
    return dataclasses.replace(partitioner, path=str(path))


def with_edges(graph: Graph, edge_index: torch.Tensor) -> Graph:
    return dataclasses.replace(graph, edge_index=edge_index)


def shapes(graph: Graph) -> dict[str, Graph]:
    """Graphs that partitioners trip over."""
    nodes = torch.arange(graph.num_nodes)
    return {
        "directed, with loops and duplicates": graph,
        "symmetric": with_edges(graph, torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)),
        "no edges": with_edges(graph, torch.empty((2, 0), dtype=torch.int64)),
        "self-loops only": with_edges(graph, torch.stack([nodes, nodes])),
        "one edge": with_edges(graph, torch.tensor([[3], [5]])),
        "star": with_edges(graph, torch.stack([nodes, torch.zeros_like(nodes)])),
    }


@pytest.mark.parametrize("num_parts", [1, 2, 7, 59, 60, 61, 500])
def test_each_node_gets_one_part_in_range(
    partitioner: Partitioner, num_parts: int, small_graph: Graph, tmp_path: Path
) -> None:
    for shape, graph in shapes(small_graph).items():
        parts = assign_parts(graph, ready(partitioner, graph, num_parts, tmp_path), num_parts, seed=1)
        assert parts.shape == (graph.num_nodes,), shape
        assert parts.dtype == np.int32, shape
        assert parts.min() >= 0, shape
        assert parts.max() < num_parts, shape


@pytest.mark.parametrize("num_parts", [1, 2, 7, 20, 59, 60, 61, 500])
def test_the_stated_balance_holds_and_no_part_is_left_empty(
    partitioner: Partitioner, num_parts: int, small_graph: Graph, tmp_path: Path
) -> None:
    bound = partitioner.max_part_size(small_graph.num_nodes, num_parts)
    if bound is None:
        return
    assert bound * num_parts >= small_graph.num_nodes
    for shape, graph in shapes(small_graph).items():
        sizes = np.bincount(assign_parts(graph, partitioner, num_parts, seed=1), minlength=num_parts)
        assert sizes.max() <= bound, shape
        assert np.count_nonzero(sizes) == min(num_parts, graph.num_nodes), shape


def test_members_without_a_stated_balance_are_the_two_whose_docs_say_so() -> None:
    assert {name for name in NAMES if PARTITIONERS[name]().max_part_size(60, 4) is None} == {"hash", "given"}


def test_the_same_seed_gives_the_same_parts(partitioner: Partitioner, small_graph: Graph, tmp_path: Path) -> None:
    chosen = ready(partitioner, small_graph, 5, tmp_path)
    first = assign_parts(small_graph, chosen, 5, seed=3)
    np.testing.assert_array_equal(first, assign_parts(small_graph, chosen, 5, seed=3))


def test_another_seed_gives_other_parts_just_where_that_is_said(
    partitioner: Partitioner, small_graph: Graph, tmp_path: Path
) -> None:
    chosen = ready(partitioner, small_graph, 5, tmp_path)
    found = {assign_parts(small_graph, chosen, 5, seed=seed).tobytes() for seed in range(4)}
    assert (len(found) > 1) == partitioner.uses_seed


def test_global_random_states_are_left_alone(partitioner: Partitioner, small_graph: Graph, tmp_path: Path) -> None:
    chosen = ready(partitioner, small_graph, 5, tmp_path)
    numpy_before, torch_before = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    assign_parts(small_graph, chosen, 5, seed=0)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_before)
    assert torch.equal(torch.random.get_rng_state(), torch_before)


def test_the_graph_is_left_as_it_was(partitioner: Partitioner, small_graph: Graph, tmp_path: Path) -> None:
    edges = small_graph.edge_index.clone()
    indices = small_graph.adjacency.indices.copy()
    assign_parts(small_graph, ready(partitioner, small_graph, 5, tmp_path), 5, seed=0)
    assert torch.equal(small_graph.edge_index, edges)
    np.testing.assert_array_equal(small_graph.adjacency.indices, indices)


def test_a_spec_gives_the_member_back(partitioner: Partitioner) -> None:
    spec = format_spec(partitioner, PARTITIONERS)
    assert spec in NAMES
    assert parse_spec(spec, PARTITIONERS, family="partitioner") == partitioner


@pytest.mark.parametrize(
    "spec",
    [
        "metis(alpha=0.5, imbalance=1.1)",
        "ldg(slack=1.2, passes=1)",
        "fennel(gamma=2.0, order='given')",
        "given(path='a b/parts.txt')",
    ],
)
def test_a_spec_with_arguments_round_trips(spec: str) -> None:
    assert format_spec(parse_spec(spec, PARTITIONERS, family="partitioner"), PARTITIONERS) == spec


def test_every_file_of_the_family_is_a_member_of_the_table() -> None:
    folder = Path(__file__).parents[2] / "src" / "laconic" / "partitioners"
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_") and path.stem != "base"}
    assert files == set(NAMES)

import logging

import pytest
import torch

from laconic.datasets.sbm import Sbm
from laconic.errors import ConfigError
from laconic.graph import Graph


def share_within_classes(graph: Graph) -> float:
    sources, destinations = graph.edge_index
    return float((graph.y[sources] == graph.y[destinations]).double().mean())


@pytest.mark.parametrize("homophily", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("degree_spread", [0.0, 1.0])
def test_degree_and_homophily_are_exactly_those_asked_for(homophily: float, degree_spread: float) -> None:
    graph = Sbm(nodes=500, degree=8, homophily=homophily, degree_spread=degree_spread).build()
    assert graph.num_edges == 500 * 8
    assert share_within_classes(graph) == pytest.approx(homophily, abs=1e-12)


def test_degree_spread_makes_hubs() -> None:
    alike = Sbm(nodes=500).build()
    spread = Sbm(nodes=500, degree_spread=1.5).build()
    assert torch.bincount(spread.edge_index[0]).max() > 2 * torch.bincount(alike.edge_index[0]).max()


def test_classes_are_of_equal_size() -> None:
    counts = torch.bincount(Sbm(nodes=302, classes=5).build().y)
    assert sorted(counts.tolist()) == [60, 60, 60, 61, 61]


def test_without_noise_the_features_are_the_centres_one_point_four_apart() -> None:
    graph = Sbm(nodes=60, classes=4, noise=0.0).build()
    centres = torch.stack([graph.x[graph.y == label][0] for label in range(4)])
    assert torch.allclose(graph.x, centres[graph.y])
    distances = torch.pdist(centres)
    assert torch.allclose(distances, torch.full_like(distances, 2**0.5), atol=1e-6)


def test_more_classes_than_features_still_have_centres_of_length_one() -> None:
    graph = Sbm(nodes=60, classes=6, features=2, degree=4, noise=0.0).build()
    assert torch.allclose(graph.x.norm(dim=1), torch.ones(60), atol=1e-6)


def test_no_edges_at_all_is_a_graph() -> None:
    assert Sbm(nodes=30, degree=0).build().num_edges == 0


def test_a_graph_too_dense_to_draw_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"degree=60\.0 .* lower degree or more nodes"):
        Sbm(nodes=100, degree=60.0)


def test_pairs_that_could_not_be_found_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        graph = Sbm(nodes=60, classes=2, degree=14.0, homophily=1.0, degree_spread=30.0).build()
    assert graph.num_edges < 60 * 14
    assert "pairs were found" in caplog.text


@pytest.mark.parametrize(
    ("field", "value"), [("homophily", 1.5), ("nodes", 5), ("degree", -1.0), ("degree_spread", -1.0)]
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"sbm: .*{field}"):
        Sbm(**{field: value})  # type: ignore[arg-type]

import numpy as np
import pytest
import torch

from laconic.datasets.rmat import Rmat
from laconic.errors import ConfigError


def test_it_has_two_to_the_scale_nodes_and_at_most_the_pairs_drawn() -> None:
    graph = Rmat(scale=8, edge_factor=8).build()
    assert graph.num_nodes == 256
    assert 256 * 8 < graph.num_edges <= 2 * 256 * 8


def test_degrees_are_skewed_as_the_quadrants_are() -> None:
    skewed = torch.bincount(Rmat(scale=9).build().edge_index[0], minlength=512)
    even = torch.bincount(Rmat(scale=9, a=0.25, b=0.25, c=0.25).build().edge_index[0], minlength=512)
    assert skewed.max() > 4 * even.max()
    assert (skewed == 0).sum() > 10 * (even == 0).sum()


def test_unshuffled_the_first_quadrant_holds_its_share_of_pairs() -> None:
    graph = Rmat(scale=10, edge_factor=1, a=0.5, b=0.2, c=0.2, shuffle=False).build()
    upper = (graph.edge_index < 512).all(dim=0).double().mean()
    # One level of the recursion: a share a of the pairs has both ends in the lower half of the numbers. Duplicates are
    # dropped and most are there, which lowers it a little.
    assert float(upper) == pytest.approx(0.5, abs=0.06)


def test_without_noise_a_node_without_edges_has_the_label_of_its_own_field() -> None:
    graph = Rmat(scale=8, edge_factor=1, classes=4, features=4, noise=0.0).build()
    alone = torch.bincount(graph.edge_index[0], minlength=256) == 0
    assert int(alone.sum()) > 30
    # The features are the field, turned: least squares finds the turn again, up to the standardisation of components.
    field = graph.x.double().numpy()
    labels = np.eye(4)[graph.y]
    turn, *_ = np.linalg.lstsq(np.c_[field, np.ones(256)][alone], labels[alone], rcond=None)
    guess = (np.c_[field, np.ones(256)] @ turn).argmax(axis=1)
    assert (guess == graph.y.numpy())[alone.numpy()].mean() > 0.9


@pytest.mark.parametrize(
    ("field", "value"), [("scale", 1), ("a", 0.9), ("b", -0.1), ("edge_factor", -1), ("classes", 1)]
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"rmat: .*{field}="):
        Rmat(**{field: value})  # type: ignore[arg-type]

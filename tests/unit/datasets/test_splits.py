import logging

import numpy as np
import pytest
import torch

from laconic.datasets._splits import labelled_masks, random_masks
from laconic.errors import ConfigError, DataError


@pytest.mark.parametrize("num_nodes", [3, 4, 10, 101])
@pytest.mark.parametrize(("train", "val"), [(0.6, 0.2), (0.98, 0.01), (0.01, 0.01)])
def test_random_masks_are_disjoint_cover_all_and_none_is_empty(num_nodes: int, train: float, val: float) -> None:
    masks = random_masks(num_nodes, train, val, np.random.default_rng(0))
    stacked = torch.stack(list(masks.values()))
    assert stacked.sum(dim=0).tolist() == [1] * num_nodes
    assert bool(stacked.any(dim=1).all())


def test_two_nodes_cannot_be_split() -> None:
    with pytest.raises(DataError, match="at least 3 nodes"):
        random_masks(2, 0.6, 0.2, np.random.default_rng(0))


def test_only_nodes_with_a_label_are_drawn_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    y = torch.tensor([0, 1, -1, 0, 1, -1, 1])
    with caplog.at_level(logging.INFO):
        masks = labelled_masks(y, 0.6, 0.2, seed=3, where="papers")
    assert masks.pop("split_origin") == "random, seed 3"
    used = torch.stack(list(masks.values())).any(dim=0)
    assert torch.equal(used, y >= 0)
    assert "papers has no split" in caplog.text
    assert "60% train, 20% val, 20% test (seed 3)" in caplog.text


@pytest.mark.parametrize(("train", "val"), [(0.0, 0.5), (0.5, 0.5), (0.5, -0.1)])
def test_shares_that_leave_a_split_empty_are_refused(train: float, val: float) -> None:
    with pytest.raises(ConfigError, match="papers: train and val are shares"):
        labelled_masks(torch.zeros(9, dtype=torch.int64), train, val, seed=0, where="papers")

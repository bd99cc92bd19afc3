"""The rate to begin with, from the share of neighbours elsewhere."""

import numpy as np
import pytest

from laconic.comm.schedules.base import PAPER_RATE
from laconic.halo.cut import Cut


@pytest.mark.parametrize(
    ("share", "rate"),
    # Random parts on 2, 4, 8 and 16 ranks, and a graph that hardly crosses ranks.
    [(0.5, PAPER_RATE), (0.75, 3.0), (0.875, 7 / 3), (0.9375, 15 / 7), (0.1, PAPER_RATE), (0.0, PAPER_RATE)],
)
def test_the_more_is_elsewhere_the_lower_the_first_rate(share, rate):
    assert Cut(np.zeros((2, 2), np.int64), share).first_rate == pytest.approx(rate)

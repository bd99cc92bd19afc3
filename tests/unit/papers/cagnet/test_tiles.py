"""The tiles of `2d_summa`: what is said of groups that do not fit."""

import numpy as np
import pytest

from laconic.comm.grid import Grid
from laconic.errors import ConfigError
from laconic.papers.cagnet.tiles import TileMap
from laconic.sharded.chunk_map import ChunkMap


def test_groups_that_32_bits_cannot_number_are_refused_where_edges_travel():
    chunk_map = ChunkMap(np.full(4, 2**30), np.arange(4))
    with pytest.raises(ConfigError, match=r"a group has 2147483648 rows, more than 2\^31 - 1. Use grid=\"2d\""):
        TileMap(Grid(2, 1, 2), chunk_map)

"""The full product of ways, models and numbers of ranks: `make test-slow`.

`make test` leaves these out; there, test_five_ways.py has every pair of two values.
"""

import pytest
from tests.equivalence.grid_runs import grid_outcomes
from tests.equivalence.halo_runs import EPOCHS, check_equal, check_traffic, make_graph
from tests.equivalence.test_five_ways import EDGES, MODELS, RANKS, REACHES, check_way

from laconic.comm.grid import Grid, all_grids

pytestmark = pytest.mark.slow

# Layers of the models here are 3 features wide or more, so that two slices are possible and eight are not.
GRIDS = [grid for num_ranks in RANKS for grid in all_grids(num_ranks) if grid.pj <= 2]


@pytest.mark.parametrize("num_ranks", RANKS)
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("name", MODELS)
def test_every_way_gives_what_one_machine_computes(name, edges, reach, num_ranks):
    check_way(name, edges, reach, num_ranks)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_grid_gives_what_one_machine_computes(name, grid: Grid):
    single, ranks = grid_outcomes(MODELS[name], make_graph(), grid.num_ranks, str(grid), EPOCHS)
    check_equal(single, ranks)
    check_traffic(ranks)

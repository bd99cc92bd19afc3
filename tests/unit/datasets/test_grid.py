import pytest
import torch

from laconic.datasets.grid import Grid
from laconic.errors import ConfigError


@pytest.mark.parametrize(("rows", "columns"), [(5, 7), (1, 9), (6, 1)])
def test_the_number_of_edges_is_that_of_the_lattice(rows: int, columns: int) -> None:
    straight = rows * (columns - 1) + columns * (rows - 1)
    slanted = 2 * (rows - 1) * (columns - 1)
    assert Grid(rows, columns).build().num_edges == 2 * straight
    assert Grid(rows, columns, diagonals=True).build().num_edges == 2 * (straight + slanted)


def test_unshuffled_the_neighbours_of_a_cell_are_those_around_it() -> None:
    graph = Grid(4, 5, shuffle=False).build()
    sources, destinations = graph.edge_index
    assert sources[destinations == 7].tolist() == [2, 6, 8, 12]
    graph = Grid(4, 5, diagonals=True, shuffle=False).build()
    sources, destinations = graph.edge_index
    assert sources[destinations == 7].tolist() == [1, 2, 3, 6, 8, 11, 12, 13]


def test_smoother_regions_have_fewer_borders() -> None:
    borders = []
    for smoothness in (0.0, 1.0, 4.0):
        graph = Grid(30, 30, smoothness=smoothness).build()
        sources, destinations = graph.edge_index
        borders.append(float((graph.y[sources] != graph.y[destinations]).double().mean()))
    assert borders[0] > 0.7 > borders[1] > 2 * borders[2]


def test_regions_larger_than_the_grid_leave_finite_features() -> None:
    graph = Grid(4, 4, smoothness=1000.0).build()
    assert bool(torch.isfinite(graph.x).all())


@pytest.mark.parametrize(("field", "value"), [("rows", 0), ("columns", 0), ("smoothness", -1.0), ("classes", 0)])
def test_a_value_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"grid: .*{field}="):
        Grid(**{field: value})  # type: ignore[arg-type]

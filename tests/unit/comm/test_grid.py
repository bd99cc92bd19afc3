"""Grids of ranks: numbering, presets, and what is said where none fits."""

import pytest

from laconic.comm.grid import GRIDS, Grid, all_grids, parse_grid
from laconic.errors import ConfigError


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7, 8, 12, 27])
def test_every_rank_of_every_grid_has_a_place_of_its_own(num_ranks):
    for grid in all_grids(num_ranks):
        assert grid.num_ranks == num_ranks
        places = [grid.coordinates_of(rank) for rank in range(num_ranks)]
        assert len(set(places)) == num_ranks
        assert [grid.rank_at(*place) for place in places] == list(range(num_ranks))


def test_there_are_as_many_grids_as_ordered_factorisations():
    assert [len(all_grids(num_ranks)) for num_ranks in (1, 2, 3, 4, 6, 8, 27)] == [1, 3, 3, 6, 9, 10, 10]
    assert len(set(all_grids(24))) == len(all_grids(24))


@pytest.mark.parametrize("axis", ["i", "k", "j"])
def test_the_lines_along_an_axis_share_the_ranks_out(axis):
    grid = Grid(2, 3, 4)
    lines = {tuple(grid.line(rank, axis)) for rank in range(24)}
    assert sorted(rank for line in lines for rank in line) == list(range(24))
    for line in lines:
        places = [grid.coordinates_of(rank)._asdict() for rank in line]
        assert [place[axis] for place in places] == list(range(len(line)))
        assert len({tuple(value for name, value in place.items() if name != axis) for place in places}) == 1


@pytest.mark.parametrize(
    ("text", "num_ranks", "grid"),
    [
        ("1d", 7, Grid(7, 1, 1)),
        ("1d_columns", 5, Grid(1, 5, 1)),
        ("1.5d", 8, Grid(4, 2, 1)),
        ("1.5d(c=4)", 8, Grid(2, 4, 1)),
        (" 2d ", 9, Grid(3, 3, 1)),
        ("3d", 27, Grid(3, 3, 3)),
        ("feature", 3, Grid(1, 1, 3)),
        ("grid(pi=2, pk=3, pj=1)", 6, Grid(2, 3, 1)),
        ("grid(pj=5)", 5, Grid(1, 1, 5)),
    ],
)
def test_presets(text, num_ranks, grid):
    assert parse_grid(text).of(num_ranks) == grid


@pytest.mark.parametrize("name", [name for name in GRIDS if name != "grid"])
def test_one_rank_is_a_grid_of_every_preset_but_a_split_one(name):
    if name.startswith("1.5d"):
        with pytest.raises(ConfigError, match="divides the number of ranks, 1"):
            parse_grid(name).of(1)
    else:
        assert parse_grid(name).of(1) == Grid(1, 1, 1)


@pytest.mark.parametrize(
    ("text", "num_ranks", "words"),
    [
        ("2d", 6, r"square number of ranks, such as 4 or 9; there are 6.*\(6, 1, 1\), \(3, 2, 1\)"),
        ("3d", 9, r"cubic number of ranks, such as 8 or 27; there are 9"),
        ("1.5d(c=3)", 8, r"c that divides the number of ranks, 8; got c=3. Use c = 1, 2, 4 or 8"),
        ("1.5d(c=0)", 8, r"got c=0"),
        ("grid(pi=2, pk=2)", 6, r"is for 4 ranks, but there are 6.*\(6, 1, 1\)"),
        ("grid(pi=0)", 6, r"axes of a grid should be 1 or more; got pi=0"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(text, num_ranks, words):
    with pytest.raises(ConfigError, match=words):
        parse_grid(text).of(num_ranks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "4d",
            r"Unknown grid '4d'. Choices: 1.5d, 1.5d_replicated, 1d, 1d_columns, 2d, 2d_summa, 3d, auto, feature, grid",
        ),
        ("", "Unknown grid ''"),
        ("1.5d(q=3)", "argument 'q'"),
        ("1.5d(c='two')", "c should be a whole number"),
        ("1.5d(2)", "cannot be read"),
    ],
)
def test_texts_that_are_no_grid_are_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_grid(text)

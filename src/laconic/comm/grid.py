"""Grid: ranks in a box with three named axes, and the presets that CAGNET's layouts are (arXiv 2005.03300).

    grid = parse_grid("1.5d(c=2)").of(8)             # Grid(pi=4, pk=2, pj=1)
    grid.coordinates_of(5)                           # Coordinates(i=2, k=1, j=0)

A product Z = A H has an output row i, a contraction k and a feature j. `pi` ranks share the rows, `pk` the contraction,
`pj` the features. Any three sizes whose product is the number of ranks are a grid; primes too. In a dense product of n
rows, f wide, a rank receives (n f / P) (pi + pk - 2 + 2 (1 - 1/pj)) words.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, NoReturn, final

from laconic.errors import ConfigError
from laconic.specs import parse_spec, unknown_name

Axis = Literal["i", "k", "j"]


class Coordinates(NamedTuple):
    """Where a rank stands on the axes of a grid."""

    i: int
    k: int
    j: int


@final
@dataclass(frozen=True)
class Grid:
    """Sizes of the axes; ranks are numbered with j fastest, then k, then i.

    Args:
        pi: ranks along i, the output rows.
        pk: ranks along k, the contraction.
        pj: ranks along j, the features.
    """

    pi: int = 1
    pk: int = 1
    pj: int = 1

    def __post_init__(self) -> None:
        if min(self.pi, self.pk, self.pj) < 1:
            raise ConfigError(f"The axes of a grid should be 1 or more; got pi={self.pi}, pk={self.pk}, pj={self.pj}.")

    @property
    def num_ranks(self) -> int:
        """P: how many ranks the grid has."""
        return self.pi * self.pk * self.pj

    def rank_at(self, i: int, k: int, j: int) -> int:
        """Returns the rank at a place."""
        assert 0 <= i < self.pi
        assert 0 <= k < self.pk
        assert 0 <= j < self.pj
        return (i * self.pk + k) * self.pj + j

    def coordinates_of(self, rank: int) -> Coordinates:
        """Returns the place of a rank."""
        assert 0 <= rank < self.num_ranks
        rest, j = divmod(rank, self.pj)
        return Coordinates(*divmod(rest, self.pk), j)

    def line(self, rank: int, axis: Axis) -> list[int]:
        """Returns the ranks that differ from `rank` along `axis` alone, in order, itself among them."""
        place = self.coordinates_of(rank)
        size = {"i": self.pi, "k": self.pk, "j": self.pj}[axis]
        return [self.rank_at(**{**place._asdict(), axis: at}) for at in range(size)]

    def __str__(self) -> str:
        return f"grid(pi={self.pi}, pk={self.pk}, pj={self.pj})"


def all_grids(num_ranks: int) -> list[Grid]:
    """Returns every grid of `num_ranks` ranks, those with the most rows first."""
    divisors = [size for size in range(num_ranks, 0, -1) if num_ranks % size == 0]
    return [Grid(pi, pk, num_ranks // (pi * pk)) for pi in divisors for pk in divisors if num_ranks % (pi * pk) == 0]


class Layout(ABC):
    """A preset, or a grid written out. The fields of a member are its whole configuration."""

    is_as_published: ClassVar[bool] = False
    """Whether edges are held and travel as a paper has it, and not as blocks that stay where they are."""

    @abstractmethod
    def of(self, num_ranks: int) -> Grid:
        """Returns the grid of `num_ranks` ranks; ConfigError, saying which would fit, where there is none."""


@final
@dataclass(frozen=True, slots=True)
class OneD(Layout):
    """1d: every rank has the edges into its own rows (block rows). Words per product: n f (P - 1) / P."""

    def of(self, num_ranks: int) -> Grid:
        return Grid(pi=num_ranks)


@final
@dataclass(frozen=True, slots=True)
class OneDColumns(Layout):
    """1d_columns: every rank has the edges out of its own rows (block columns), and sums travel instead of rows."""

    def of(self, num_ranks: int) -> Grid:
        return Grid(pk=num_ranks)


@final
@dataclass(frozen=True, slots=True)
class OneAndHalfD(Layout):
    """1.5d: rows are gathered among P / c ranks and sums scattered among c.

    Args:
        c: ranks along k; has to divide the number of ranks.
    """

    c: int = 2

    def of(self, num_ranks: int) -> Grid:
        _check_c("1.5d", self.c, [c for c in range(1, num_ranks + 1) if num_ranks % c == 0], num_ranks)
        return Grid(pi=num_ranks // self.c, pk=self.c)


@final
@dataclass(frozen=True, slots=True)
class ReplicatedRows(Layout):
    """1.5d_replicated: as CAGNET's 1.5D, whole row groups are on all c ranks of a process row while products run.

    Edges into a row group are cut by whole row groups of sources. Words per product: about n f / c for the sources and
    2 n f (c - 1) / P for the replicas, which the paper makes by an all-reduce after a product, and we half after it and
    half before the next one, so that nothing between products is computed c times.

    Args:
        c: replicas; has to divide the number of ranks, and its square must not be larger.
    """

    c: int = 2
    is_as_published: ClassVar[bool] = True

    def of(self, num_ranks: int) -> Grid:
        fitting = [c for c in range(1, math.isqrt(num_ranks) + 1) if num_ranks % c == 0]
        _check_c("1.5d_replicated", self.c, fitting, num_ranks)
        return Grid(pi=num_ranks // self.c, pk=self.c)


@final
@dataclass(frozen=True, slots=True)
class TwoD(Layout):
    """2d: as many ranks along i as along k; edges stay where they are. Words: 2 n f (sqrt(P) - 1) / P."""

    def of(self, num_ranks: int) -> Grid:
        side = _side_of_square("2d", num_ranks)
        return Grid(pi=side, pk=side)


@final
@dataclass(frozen=True, slots=True)
class Summa(Layout):
    """2d_summa: as CAGNET's 2D, edges and rows are cut both ways, and both travel in every product.

    A rank has the edges from column group j to row group i, broadcast along its process row in every product: two
    numbers and a value for each. Slices of the rows are broadcast along its process column.

    Args:
        symmetric: keep the edges once, and take the matrix for its own transpose in the backward pass, as the published
            code does; refused where it is not.
    """

    symmetric: bool = False
    is_as_published: ClassVar[bool] = True

    def of(self, num_ranks: int) -> Grid:
        side = _side_of_square("2d_summa", num_ranks)
        return Grid(pi=side, pj=side)


@final
@dataclass(frozen=True, slots=True)
class ThreeD(Layout):
    """3d: as many ranks along each of the three axes."""

    def of(self, num_ranks: int) -> Grid:
        side = round(num_ranks ** (1 / 3))
        if side**3 != num_ranks:
            side = next(q for q in range(num_ranks + 1) if (q + 1) ** 3 > num_ranks)
            _refuse("3d needs a cubic number of ranks", num_ranks, side**3, (side + 1) ** 3)
        return Grid(side, side, side)


@final
@dataclass(frozen=True, slots=True)
class Feature(Layout):
    """feature: every rank has all edges and a slice of the features. Fewest words; edges are held P times."""

    def of(self, num_ranks: int) -> Grid:
        return Grid(pj=num_ranks)


@final
@dataclass(frozen=True, slots=True)
class Explicit(Layout):
    """grid: the three sizes, written out."""

    pi: int = 1
    pk: int = 1
    pj: int = 1

    def of(self, num_ranks: int) -> Grid:
        grid = Grid(self.pi, self.pk, self.pj)
        if grid.num_ranks != num_ranks:
            raise ConfigError(
                f"{grid} is for {grid.num_ranks} ranks, but there are {num_ranks}. For {num_ranks} ranks "
                f"(pi, pk, pj) may be {_either([f'({g.pi}, {g.pk}, {g.pj})' for g in all_grids(num_ranks)])}."
            )
        return grid


GRIDS: Mapping[str, type[Layout]] = {
    "1d": OneD,
    "1d_columns": OneDColumns,
    "1.5d": OneAndHalfD,
    "1.5d_replicated": ReplicatedRows,
    "2d": TwoD,
    "2d_summa": Summa,
    "3d": ThreeD,
    "feature": Feature,
    "grid": Explicit,
}


def parse_grid(text: str) -> Layout:
    """Returns the layout that a text such as "2d", "1.5d(c=4)" or "grid(pi=2, pk=2, pj=1)" names."""
    # A name that begins with a digit is none in Python, which reads the arguments: another stands for it there.
    written = re.match(r"\s*([\w.]+)", text)
    name = written[1] if written is not None else ""
    if name not in GRIDS:
        raise ConfigError(unknown_name(name or text, ["auto", *GRIDS], family="grid"))
    return parse_spec(f"grid{text[text.index(name) + len(name) :]}", {"grid": GRIDS[name]}, family=f"{name}:")


def _check_c(name: str, c: int, fitting: list[int], num_ranks: int) -> None:
    if c not in fitting:
        most = "" if fitting[-1] == num_ranks else " and whose square is not larger"
        raise ConfigError(
            f"{name} needs a c that divides the number of ranks, {num_ranks}{most}; got c={c}. "
            f"Use c = {_either([str(each) for each in fitting])}."
        )


def _side_of_square(name: str, num_ranks: int) -> int:
    side = math.isqrt(num_ranks)
    if side**2 != num_ranks:
        _refuse(f"{name} needs a square number of ranks", num_ranks, side**2, (side + 1) ** 2)
    return side


def _refuse(need: str, num_ranks: int, below: int, above: int) -> NoReturn:
    grids = _either([f"({grid.pi}, {grid.pk}, {grid.pj})" for grid in all_grids(num_ranks)])
    raise ConfigError(
        f"{need}, such as {below} or {above}; there are {num_ranks}. For {num_ranks} ranks "
        f'"grid(pi=, pk=, pj=)" may be {grids}; "auto" chooses among them.'
    )


def _either(choices: list[str], most: int = 12) -> str:
    shown = choices if len(choices) <= most else [*choices[: most - 1], f"{len(choices) - most + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"

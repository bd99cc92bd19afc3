"""Which grid: every factorisation of the number of ranks with its words, memory and time, and the best of them.

    plan = make_plan(sizes, width=128, itemsize=4, ...)
    plan.best.grid, plan.table()

Seconds are those of one product and its share of the backward pass, on rows as wide as the features: the local product
and what travels, without what overlaps. They serve to compare grids, not to foretell an epoch.
"""

import os
from dataclasses import dataclass
from typing import final

import torch

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.errors import ConfigError
from laconic.grids.survey import GridSizes
from laconic.units import format_bytes, format_count, format_seconds

# Of the sparse product on one core: nanoseconds of an edge, and of each of its words (benchmarks/kernels.py has more).
_EDGE_SECONDS = 15e-9
_WORD_SECONDS = 0.5e-9
_MESSAGE_SECONDS = 100e-6
# What an edge of a block takes: edge_index 16, the block's rows 8, its quarters 12, their transposes 8.
EDGE_BYTES = 44
# What a row or a column takes: starts of rows, scales in two precisions, ids, lists.
NODE_BYTES = 72
# Between this and the whole machine lies all that is not counted: the model, the optimizer, Python.
_MEMORY_SHARE = 0.7


@final
@dataclass(frozen=True)
class Candidate:
    """A grid and what it would cost the busiest rank.

    Args:
        sizes: what it moves and holds.
        words: words received in one product.
        num_bytes: memory for the block of edges, features and exchange.
        seconds: of one product.
        objection: why it cannot be chosen, or nothing.
    """

    sizes: GridSizes
    words: float
    num_bytes: int
    seconds: float
    objection: str = ""

    @property
    def grid(self) -> Grid:
        return self.sizes.grid


@final
@dataclass(frozen=True)
class Plan:
    """All grids, the best first; those that cannot be chosen last."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def table(self, most: int = 12) -> str:
        """Returns a line for each grid, for people."""
        lines = [f"    {'pi pk pj':>12}  {'words/product':>14}  {'memory':>10}  {'time/product':>12}"]
        for candidate in self.candidates[:most]:
            grid = candidate.grid
            lines.append(
                f"    {f'{grid.pi} x {grid.pk} x {grid.pj}':>12}  {format_count(round(candidate.words)):>14}  "
                f"{format_bytes(candidate.num_bytes):>10}  {format_seconds(candidate.seconds):>12}"
                + ("  all edges on every rank" if grid.pi * grid.pk == 1 else "")
                + (f"  {candidate.objection}" if candidate.objection else "")
                + ("  chosen" if candidate is self.best else "")
            )
        if len(self.candidates) > most:
            lines.append(f"    and {len(self.candidates) - most} more")
        return "\n".join(lines)


def make_plan(
    sizes: list[GridSizes],
    *,
    width: int,
    narrowest: int,
    itemsize: int,
    link_mbit: float,
    limit_bytes: int,
) -> Plan:
    """Returns all grids with their costs.

    Args:
        width: features of a row.
        narrowest: the narrowest rows that will be sliced.
        itemsize: bytes of a word.
        link_mbit: speed of a rank's link.
        limit_bytes: memory that a rank may use.
    """
    candidates = sorted(
        (_candidate(each, width, narrowest, itemsize, link_mbit, limit_bytes) for each in sizes),
        key=lambda candidate: (bool(candidate.objection), candidate.seconds, candidate.num_bytes),
    )
    if candidates[0].objection:
        least = min(candidates, key=lambda candidate: candidate.num_bytes)
        raise ConfigError(
            f"No grid fits into the memory of a rank, {format_bytes(limit_bytes)}: {least.grid} needs the least, "
            f"{format_bytes(least.num_bytes)}. Use more ranks, or name a grid to try it nevertheless."
        )
    return Plan(tuple(candidates))


def memory_limit(communicator: Communicator, num_local_ranks: int) -> int:
    """Returns the bytes that a rank may use: an equal share of its machine's memory; the least of all ranks."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = torch.tensor([int(whole * _MEMORY_SHARE / num_local_ranks)])
    with communicator.ledger.phase("setup"):
        return int(communicator.all_reduce(share, op="min"))


def held_bytes(sizes: GridSizes, width: int, itemsize: int) -> int:
    """Returns what the busiest rank keeps: edges, scales and lists, its features and their aggregate."""
    return sizes.num_edges * EDGE_BYTES + sizes.num_rows * NODE_BYTES + 2 * sizes.num_own * width * itemsize


def buffer_bytes(sizes: GridSizes, width: int, itemsize: int) -> int:
    """Returns what it needs while a product runs: a slice of all rows that are gathered and summed."""
    return sizes.num_rows * -(-width // sizes.grid.pj) * itemsize


def _candidate(
    sizes: GridSizes, width: int, narrowest: int, itemsize: int, link_mbit: float, limit_bytes: int
) -> Candidate:
    grid = sizes.grid
    num_bytes = held_bytes(sizes, width, itemsize) + buffer_bytes(sizes, width, itemsize)
    words = sizes.words * width
    compute = sizes.num_edges * (_EDGE_SECONDS + _WORD_SECONDS * width / grid.pj)
    objection = ""
    if grid.pj > narrowest:
        objection = f"slices {narrowest} features"
    elif num_bytes > limit_bytes:
        objection = f"over the {format_bytes(limit_bytes)} of a rank"
    seconds = compute + 8e-6 * words * itemsize / link_mbit + sizes.num_messages * _MESSAGE_SECONDS
    return Candidate(sizes, words, num_bytes, seconds, objection)

"""Which grid: every factorisation of the number of ranks with its words, memory and time, and the best of them.

    plan = make_plan(sizes, workload=Workload.of_model(model, ...), itemsize=4, ...)
    plan.best.grid, plan.table()

Seconds are those of all products of an epoch of the model: the local products and what travels, without what overlaps.
They serve to compare grids, not to foretell an epoch.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

from laconic.comm.communicator import Communicator
from laconic.comm.grid import Grid
from laconic.errors import ConfigError
from laconic.launching.environment import rank_environment
from laconic.sharded.survey import GridSizes
from laconic.sharded.workload import Workload
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
        words: words received in all products.
        num_bytes: memory for the block of edges, features and exchange.
        seconds: of all products.
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
    workload: Workload

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    def table(self, most: int = 12) -> str:
        """Returns a line for each grid, for people."""
        lines = [f"    {'pi pk pj':>12}  {'words/epoch':>14}  {'memory':>10}  {'time/epoch':>12}"]
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
    workload: Workload,
    itemsize: int,
    link_mbit: float,
    limit_bytes: int,
    most_slices: int | None = None,
    is_staged: bool = False,
) -> Plan:
    """Returns all grids with their costs.

    Args:
        workload: what will be multiplied.
        itemsize: bytes of a word.
        link_mbit: speed of a rank's link.
        limit_bytes: memory that a rank may use.
        most_slices: the largest pj that may be chosen, whatever the workload.
        is_staged: whether rows travel in stages.
    """

    def objection(grid: Grid, num_bytes: int) -> str:
        if grid.pj > workload.narrowest:
            return f"slices {workload.narrowest} features"
        if most_slices is not None and grid.pj > most_slices:
            return "slices rows that are coded whole"
        if num_bytes > limit_bytes:
            return f"over the {format_bytes(limit_bytes)} of a rank"
        return workload.objection(grid)

    candidates = sorted(
        (_candidate(each, workload, itemsize, link_mbit, objection, is_staged=is_staged) for each in sizes),
        key=lambda candidate: (bool(candidate.objection), candidate.seconds, candidate.num_bytes),
    )
    if candidates[0].objection:
        least = min(candidates, key=lambda candidate: candidate.num_bytes)
        if least.num_bytes <= limit_bytes:
            # The model is not for grids: `check` says so, by name, of the one that can do most.
            least = next(candidate for candidate in candidates if candidate.grid.pi == candidate.grid.num_ranks)
            return Plan((least, *(other for other in candidates if other is not least)), workload)
        raise ConfigError(
            f"No grid fits into the memory of a rank, {format_bytes(limit_bytes)}: {least.grid} needs the least, "
            f"{format_bytes(least.num_bytes)}. Use more ranks, or name a grid to try it nevertheless."
        )
    return Plan(tuple(candidates), workload)


def memory_limit(communicator: Communicator) -> int:
    """Returns the bytes that a rank may use: an equal share of its machine's memory; the least of all ranks."""
    environment, whole = rank_environment(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    num_local_ranks = 1 if environment is None else environment.num_local_ranks
    share = torch.tensor([int(whole * _MEMORY_SHARE / num_local_ranks)])
    with communicator.ledger.phase("setup"):
        return int(communicator.all_reduce(share, op="min"))


def held_bytes(sizes: GridSizes, width: int, itemsize: int) -> int:
    """Returns what the busiest rank keeps: edges, scales and lists, its features and their aggregate."""
    return sizes.num_edges * EDGE_BYTES + sizes.num_rows * NODE_BYTES + 2 * sizes.num_own * width * itemsize


def buffer_bytes(sizes: GridSizes, width: int, itemsize: int, *, is_staged: bool = False) -> int:
    """Returns what it needs while a product runs: a slice of all rows that are gathered and summed."""
    num_rows = sizes.num_rows_staged if is_staged else sizes.num_rows
    return num_rows * -(-width // sizes.grid.pj) * itemsize


def _candidate(
    sizes: GridSizes,
    workload: Workload,
    itemsize: int,
    link_mbit: float,
    objection: Callable[[Grid, int], str],
    *,
    is_staged: bool,
) -> Candidate:
    grid = sizes.grid
    buffers = buffer_bytes(sizes, workload.widest, itemsize, is_staged=is_staged)
    num_bytes = held_bytes(sizes, workload.num_features, itemsize) + buffers
    words = sizes.words * sum(workload.products)
    compute = sum(
        sizes.num_edges * (_EDGE_SECONDS + _WORD_SECONDS * -(-width // grid.pj)) for width in workload.products
    )
    messages = len(workload.products) * sizes.num_messages * _MESSAGE_SECONDS
    seconds = compute + 8e-6 * words * itemsize / link_mbit + messages
    return Candidate(sizes, words, num_bytes, seconds, objection(grid, num_bytes))

"""What would a share of a hop's rows win, or a reach that differs from rank to rank? A count, not a run.

    LACONIC_DATA=folder python benchmarks/shares.py             # ten seconds
    LACONIC_DATA=folder python benchmarks/shares.py --quick     # the smaller graphs

With reach 1 a rank computes the first hidden layer of all its halo rows; with reach 0 none, and rows and
partial sums of the second layer travel. Let rank p compute a share f_p of its halo rows:

    T(f) = max over ranks p of  f_p c_p + 8 w (sum_q (1 - f_p) V_qp + sum_q (1 - f_q) V_pq) / link

with c_p the seconds to compute all its halo rows, V_pq the vectors of the cover from p to q, and w the bytes
of a vector, forward and backward. Vectors are taken to fall in proportion, which a smaller cover cannot
promise: the gain is the most there can be. Shares are tried in quarters on every rank, 5^4 choices. The
gain is that of this part of an epoch over the better of f = 0 and f = 1; the rest of an epoch stays.
"""

import itertools
import sys

import numpy as np

from harness import Benchmark, console, make_table
from laconic.comm import Communicator, Ledger, run_ranks
from laconic.datasets import load
from laconic.partitioners import PARTITIONERS, assign_parts
from laconic.sharded.block import BlockMap
from laconic.sharded.chunk_map import ChunkMap
from laconic.sharded.edge_placement import find_covers
from laconic.sharded.placement import place
from laconic.sharded.reach_choice import FLOPS_PER_SECOND
from laconic.specs import parse_spec
from laconic.store import chunk_in_memory

NUM_RANKS = 4
LINKS_MBIT = (50, 100, 200, 400, 1000)
# Width of the hidden layers, as in the other benchmarks.
GRAPHS = {"debian": 256, "amazon_photo": 64, "pubmed": 64, "facebook_pages": 64}
QUICK = ("pubmed", "facebook_pages")


def count(name: str, partition: str) -> dict[str, list]:
    """Returns the halo rows of each rank, (P,), and the vectors of the cover to each rank from each, (P, P)."""
    graph = load(name)
    parts = assign_parts(graph, parse_spec(partition, PARTITIONERS, family="partitioner"), NUM_RANKS, seed=0)
    chunk_map = ChunkMap.even(np.bincount(parts, minlength=NUM_RANKS).tolist(), NUM_RANKS)

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        placement = place(
            lambda number: chunk_in_memory(graph, parts, NUM_RANKS, number), BlockMap.one_axis(chunk_map), communicator
        )
        covers = find_covers(placement, "cover")
        rows = placement.exchange.splits.receive if covers is None else covers.counts[:2].sum(axis=0).tolist()
        return placement.exchange.num_received, list(rows)

    halo, vectors = zip(*run_ranks(NUM_RANKS, run, timeout=300), strict=True)
    return {"halo": list(halo), "vectors": list(vectors), "features": graph.num_features}


def seconds(numbers: dict[str, list], width: int, link_mbit: float, shares: tuple[float, ...]) -> float:
    """Returns T(f)."""
    vectors, stays = np.array(numbers["vectors"]), 1.0 - np.array(shares)
    # Forward and two products backward, of the neighbours' and of the row's own weights.
    computed = np.array(numbers["halo"]) * 3 * 2 * (2 * numbers["features"] * width) / FLOPS_PER_SECOND
    moved = stays * vectors.sum(axis=1) + (vectors * stays[:, None]).sum(axis=0)
    return float((np.array(shares) * computed + 8e-6 * 4 * width * moved / link_mbit).max())


def main() -> None:
    benchmark = Benchmark.from_command_line("shares", "What a share of a hop would win.", {True: {}, False: {}})
    table = make_table(
        "milliseconds of the second layer's rows, four ranks: all or none, with shares, gain",
        *("graph, parts", *(f"{link} mbit" for link in LINKS_MBIT)),
    )
    for name, partition in itertools.product(QUICK if benchmark.quick else GRAPHS, ("random", "metis")):
        numbers = benchmark.cell(f"{name}, {partition}", lambda n=name, p=partition: count(n, p))
        row = []
        for link in LINKS_MBIT:
            width = GRAPHS[name]
            whole = min(seconds(numbers, width, link, (share,) * NUM_RANKS) for share in (0.0, 1.0))
            choices = itertools.product((0.0, 0.25, 0.5, 0.75, 1.0), repeat=NUM_RANKS)
            best = min(seconds(numbers, width, link, shares) for shares in choices)
            benchmark.figures[f"{name}, {partition}, {link} mbit: gain"] = 1 - best / whole
            row.append(f"{1e3 * whole:.0f}, {1e3 * best:.0f}, {1 - best / whole:.0%}")
        table.add_row(f"{name}, {partition}", *row)
    console.print(table)
    benchmark.finish()


if __name__ == "__main__":
    sys.exit(main())

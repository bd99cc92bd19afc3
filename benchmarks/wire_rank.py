"""What each host runs for grids.py to learn what the network itself can do: all-to-alls, and nothing else.

    laconic lab --hosts 4 --link 100mbit -- python benchmarks/wire_rank.py 100 4.5

Every rank sends as much to each of the others, all at once, as an exchange does. Rank 0 prints one number of JSON:
seconds over those of the payload at the link's rate, the median of several.
"""

import json
import statistics
import sys
import time

import torch

from laconic.comm.splits import Splits
from laconic.launching.join import join_ranks

NUM_TURNS = 9


def main(link_mbit: str, megabytes: str) -> None:
    communicator = join_ranks()
    rank, num_ranks = communicator.rank, communicator.num_ranks
    size = int(float(megabytes) * 1e6) // 4 // (num_ranks - 1)
    sizes = tuple(0 if peer == rank else size for peer in range(num_ranks))
    words, ideal = torch.ones(sum(sizes)), sum(sizes) * 4 * 8e-6 / float(link_mbit)
    seconds = []
    with communicator.transport:
        for _ in range(NUM_TURNS):
            communicator.barrier()
            since = time.perf_counter()
            communicator.all_to_all(words, Splits(sizes, sizes, size))
            communicator.barrier()
            seconds.append(time.perf_counter() - since)
    if rank == 0:
        print(json.dumps(statistics.median(seconds) / ideal))


if __name__ == "__main__":
    main(*sys.argv[1:])

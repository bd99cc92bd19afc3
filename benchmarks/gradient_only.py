"""Training that exchanges only gradients, against exact exchange and `single`.

    sudo python benchmarks/gradient_only.py                               # speed: some 50 minutes, resumes when stopped
    LACONIC_DATA=folder python benchmarks/gradient_only.py --accuracy     # accuracy and bias: an hour, resumes
    sudo python benchmarks/gradient_only.py --memory                      # memory per rank: some minutes, resumes

With --quick, each takes a minute or two. All of them take `gradient_only` with one setting, its default. Accuracy and
memory are explained in gradient_only_accuracy.py and gradient_only_memory.py; what follows is on speed.

Four hosts of the lab, each one process of one thread, a graph of ogbn-arxiv's size, models 256 wide. All ways of a
model take turns within one run of the hosts, whose links become slower on the way: 1 gbit, 100 mbit, 25 mbit. All hosts
begin a turn together, and a step takes as long as on the slowest. Before the first turn each way has taken a step, and
fetched what it needs once. A turn of exact exchange, which is told a link of 100 mbit, is one epoch. Four of the nine
models are measured at 25 mbit; attention, which computes long, is measured at 100 mbit only. `before` is the default of
the commit before the engine was one (bfe03fd), in processes of its own after the others, on the same hosts.

A turn of `gradient_only` is the refresh with which a super-epoch begins and four steps. An epoch is the mean over the
whole super-epoch of 20: the refresh, these four, and for each of the others the median of the last three. Switching is
the refresh (or the change of chunks) and what the steps measured take longer than that median. Compute is the same
epoch of all processes at the same time over a transport that moves nothing, measured once per model; wire is payload at
the link's rate, of the busiest host. Both sides are on random parts; at 100 mbit both are on METIS parts as well. At
100 mbit and below `keep=rows` is shown too, which models with attention have by default, and in one cell, with three
steps, moving chunks, the way of the paper, for what their switches cost.

Epochs to 99% of the best validation score are counted once per model, 64 wide and on a graph a tenth the size, and
multiplied with the seconds measured; exact exchange needs as many as `single`.
"""

import sys

import gradient_only_accuracy as accuracy
import gradient_only_memory as memory
import gradient_only_speed as speed
from harness import Benchmark

PARTS = {"speed": speed, "accuracy": accuracy, "memory": memory}


def main() -> None:
    chosen = next((part for part in PARTS if f"--{part}" in sys.argv[1:]), "speed")
    name = "gradient_only" if chosen == "speed" else f"gradient_only_{chosen}"
    part = PARTS[chosen]
    benchmark = Benchmark.from_command_line(
        name, __doc__.splitlines()[0], {quick: part.targets(quick) for quick in (True, False)}, parts=tuple(PARTS)
    )
    part.run(benchmark)


if __name__ == "__main__":
    sys.exit(main())

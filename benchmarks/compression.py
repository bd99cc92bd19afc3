"""Compressed exchange against full communication and the paper's schedule: accuracy over bytes, and seconds.

    LACONIC_DATA=folder python benchmarks/compression.py             # accuracy: about 40 minutes, resumes when stopped
    sudo LACONIC_DATA=folder python benchmarks/compression.py --lab  # seconds on four hosts: some 15 minutes, resumes
    LACONIC_DATA=folder python benchmarks/compression.py --questions # what the paper leaves open: some 15 minutes

With --quick, each takes a minute or two. Accuracy is explained in compression_accuracy.py, seconds in
compression_lab.py, the rest in compression_questions.py; compression_plots.py makes the pictures of docs/ from what the
first leaves in results/.
"""

import sys

import compression_accuracy as accuracy
import compression_lab as lab
import compression_questions as questions
from harness import Benchmark

PARTS = {"accuracy": accuracy, "lab": lab, "questions": questions}


def main() -> None:
    chosen = next((part for part in PARTS if f"--{part}" in sys.argv[1:]), "accuracy")
    part = PARTS[chosen]
    benchmark = Benchmark.from_command_line(
        "compression" if chosen == "accuracy" else f"compression_{chosen}",
        __doc__.splitlines()[0],
        {quick: part.targets(quick) for quick in (True, False)},
        parts=tuple(PARTS),
    )
    part.run(benchmark)


if __name__ == "__main__":
    sys.exit(main())

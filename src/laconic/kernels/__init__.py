"""Compiled CPU kernels (numba). They know arrays only: no graphs, no torch, no ranks.

Every kernel writes each output row from one thread in a fixed order, so results do not depend on the number of threads.
Each is compiled once per machine and kept on disk: `laconic doctor --warm-up`, which `make` runs at set-up, does it.
"""

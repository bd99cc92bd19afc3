"""Graphs from generators, files and PyG objects.

graph = load("sbm(nodes=5000)")
"""

from laconic.datasets._fields import undirected
from laconic.datasets.catalogue import Entry, available
from laconic.datasets.files import load_files
from laconic.datasets.load import GENERATORS, check_source, load
from laconic.datasets.npz import load_npz, save_npz
from laconic.datasets.ogb import load_ogb
from laconic.datasets.pyg import from_pyg

__all__ = [
    "GENERATORS",
    "Entry",
    "available",
    "check_source",
    "from_pyg",
    "load",
    "load_files",
    "load_npz",
    "load_ogb",
    "save_npz",
    "undirected",
]

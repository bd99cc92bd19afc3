"""Laconic trains graph neural networks on graphs too large for one machine, saying little between them.

session = laconic.join("cora.npz")              # a training loop of your own
summary = laconic.start(laconic.Config())       # or the one that `laconic train` runs
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laconic.datasets import from_pyg, load, save_npz
    from laconic.errors import LaconicError
    from laconic.graph import Graph, GraphChange, NewNodes, Shard
    from laconic.launching.function import launch
    from laconic.papers.grappa.ddp_hook import coverage_hook
    from laconic.session import Session, join
    from laconic.store import open_store, write_store
    from laconic.trainer.config import Config
    from laconic.trainer.predict import predict
    from laconic.trainer.start import resume, start

__version__ = "0.1.0"

# Torch and numba each bring an OpenMP library, whose threads by default spin while they wait for work: two sets of them
# take the cores from each other. Read when a library is loaded, so it is set here; see docs/decisions/0009.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# An epoch makes and frees a few large tensors per layer; in pages of 4 KiB, handing them out costs a good part of it.
# Torch reads this when it first allocates; see docs/decisions/0010.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# Loaded on first use: `laconic --help` should not wait for torch.
_HOME = {
    "Config": "laconic.trainer.config",
    "Graph": "laconic.graph",
    "GraphChange": "laconic.graph",
    "LaconicError": "laconic.errors",
    "NewNodes": "laconic.graph",
    "Session": "laconic.session",
    "Shard": "laconic.graph",
    "coverage_hook": "laconic.papers.grappa.ddp_hook",
    "from_pyg": "laconic.datasets",
    "join": "laconic.session",
    "launch": "laconic.launching.function",
    "load": "laconic.datasets",
    "open_store": "laconic.store",
    "predict": "laconic.trainer.predict",
    "resume": "laconic.trainer.start",
    "save_npz": "laconic.datasets",
    "start": "laconic.trainer.start",
    "write_store": "laconic.store",
}

__all__ = [
    "Config",
    "Graph",
    "GraphChange",
    "LaconicError",
    "NewNodes",
    "Session",
    "Shard",
    "__version__",
    "coverage_hook",
    "from_pyg",
    "join",
    "launch",
    "load",
    "open_store",
    "predict",
    "resume",
    "save_npz",
    "start",
    "write_store",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'laconic' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)

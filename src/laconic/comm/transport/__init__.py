"""How tensors go from rank to rank: one file per way, and the table of their names.

`torch` is the one for training; `threads` runs many ranks in one process, for tests; `local` is one rank alone.
"""

from collections.abc import Mapping

from laconic.comm.transport.base import DEFAULT_TIMEOUT_SECONDS, Reduction, Transport
from laconic.comm.transport.local import LocalTransport
from laconic.comm.transport.threads import ThreadTransport, run_ranks
from laconic.comm.transport.torch import TorchTransport, connect

TRANSPORTS: Mapping[str, type[Transport]] = {
    "local": LocalTransport,
    "threads": ThreadTransport,
    "torch": TorchTransport,
}

__all__ = [
    "DEFAULT_TIMEOUT_SECONDS",
    "TRANSPORTS",
    "LocalTransport",
    "Reduction",
    "ThreadTransport",
    "TorchTransport",
    "Transport",
    "connect",
    "run_ranks",
]

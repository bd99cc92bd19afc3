"""Moves bytes between ranks, and counts them. Knows tensors and ranks, never graphs."""

from laconic.comm.communicator import Communicator
from laconic.comm.ledger import PHASES, Ledger
from laconic.comm.pending import Pending
from laconic.comm.splits import Splits
from laconic.comm.transport import TRANSPORTS, LocalTransport, Transport, connect, run_ranks

__all__ = [
    "PHASES",
    "TRANSPORTS",
    "Communicator",
    "Ledger",
    "LocalTransport",
    "Pending",
    "Splits",
    "Transport",
    "connect",
    "run_ranks",
]

"""Processes that are started, watched and ended together: one per rank by `launch`, one per host by the lab."""

from laconic.processes.cores import num_usable_cores, threads_per_rank
from laconic.processes.fork import is_safe_to_fork
from laconic.processes.leaving import leave
from laconic.processes.lines import LineReader
from laconic.processes.process import GroupProcess, Stream
from laconic.processes.signals import HeldSignals, signal_handler, unwinding_signals
from laconic.processes.watched import WatchedProcesses

__all__ = [
    "GroupProcess",
    "HeldSignals",
    "LineReader",
    "Stream",
    "WatchedProcesses",
    "is_safe_to_fork",
    "leave",
    "num_usable_cores",
    "signal_handler",
    "threads_per_rank",
    "unwinding_signals",
]

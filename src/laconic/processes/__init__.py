"""Processes that are started, watched and ended together: one per rank by `launch`, one per host by the lab."""

from laconic.processes.cores import num_usable_cores, threads_per_rank
from laconic.processes.events import Events
from laconic.processes.lines import LineReader
from laconic.processes.process import GroupProcess, Stream
from laconic.processes.signals import HeldSignals

__all__ = [
    "Events",
    "GroupProcess",
    "HeldSignals",
    "LineReader",
    "Stream",
    "num_usable_cores",
    "threads_per_rank",
]

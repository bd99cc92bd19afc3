"""The names that a lab gives away. They say whose it is, so that no lab touches another, and leftovers can be told.

A namespace is called laconic-LAB-PID-START-switch or ...-host2: LAB is a number from 0 to 255 that no other living lab
has, and gives subnet and interfaces; PID and START (in clock ticks since boot) are the process that owns the lab.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import final

NAMESPACES = Path("/run/netns")
NUM_LABS = 256
_NAME = re.compile(r"laconic-(\d+)-(\d+)-(\d+)-(switch|host\d+)")


@final
@dataclass(frozen=True, slots=True)
class LabName:
    """A lab's number and its owner, from which all other names follow."""

    number: int
    pid: int
    start_ticks: int

    @property
    def switch(self) -> str:
        """The namespace that holds the bridge."""
        return self._namespace("switch")

    def host(self, host: int) -> str:
        """The namespace of a host."""
        return self._namespace(f"host{host}")

    @property
    def bridge(self) -> str:
        return f"lab{self.number}"

    # At most 15 characters are allowed, and at most 10 are used.
    def interface(self, host: int) -> str:
        """A host's interface, in the host's namespace."""
        return f"lab{self.number}h{host}"

    def port(self, host: int) -> str:
        """The other end of the cable, in the switch's namespace."""
        return f"lab{self.number}p{host}"

    def address(self, host: int) -> str:
        return f"10.77.{self.number}.{host + 1}"

    def owner_lives(self) -> bool:
        """Whether the process that made the lab is still there, and is not another with its number."""
        return _start_ticks(self.pid) == self.start_ticks

    def _namespace(self, what: str) -> str:
        return f"laconic-{self.number}-{self.pid}-{self.start_ticks}-{what}"


def list_labs() -> dict[LabName, list[str]]:
    """Returns the labs that there are on this machine, living or not, with their namespaces."""
    labs: dict[LabName, list[str]] = {}
    for namespace in sorted(os.listdir(NAMESPACES)) if NAMESPACES.exists() else []:
        match = _NAME.fullmatch(namespace)
        if match is not None:
            labs.setdefault(LabName(int(match[1]), int(match[2]), int(match[3])), []).append(namespace)
    return labs


def free_name() -> LabName | None:
    """Returns a name for a new lab of this process; None if all numbers are taken."""
    taken = {lab.number for lab in list_labs()}
    number = next((number for number in range(NUM_LABS) if number not in taken), None)
    start_ticks = _start_ticks(os.getpid())
    assert start_ticks is not None, "this process has no start time"
    return None if number is None else LabName(number, os.getpid(), start_ticks)


def _start_ticks(pid: int) -> int | None:
    """Returns when a process started; None if there is none, or only what its parent has not collected yet."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The program's name stands in parentheses and may itself contain some; field 3 follows, then up to 22.
    fields = text[text.rindex(")") + 1 :].split()
    return None if fields[0] in "ZX" else int(fields[19])

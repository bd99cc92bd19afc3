"""What a run in the lab leaves behind: per host its exit code, time, traffic and, if asked, output."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from laconic.processes import Stream

OnOutput = Callable[[int, Stream, str], None]
"""Called with the number of a host, the stream, and a line without its end, as soon as the line is there."""

_FULL_PACKET_BYTES = 1514  # Ethernet's largest frame; what is repeated is bulk, whose packets are full.


@final
@dataclass(frozen=True, slots=True)
class Traffic:
    """What went through a host's interface, as the kernel counts it: headers included, loopback not.

    The kernel hands over up to 64 KB at once and counts that as one packet with one header, where a wire would carry
    some 45: bytes are a little fewer than on a wire, packets far fewer.
    """

    received_bytes: int = 0
    received_packets: int = 0
    sent_bytes: int = 0
    sent_packets: int = 0
    repeated_packets: int = 0
    """Packets of a wire that TCP sent a second time; counted in `sent_bytes`, and at their receiver."""

    @property
    def sent_once_bytes(self) -> int:
        """What the host sent without the repetitions: what its programs and TCP's headers amount to.

        On a busy machine packets of an unlimited link overtake each other, and TCP takes them for lost.
        """
        return self.sent_bytes - self.repeated_packets * _FULL_PACKET_BYTES

    def __sub__(self, earlier: "Traffic") -> "Traffic":
        return Traffic(
            self.received_bytes - earlier.received_bytes,
            self.received_packets - earlier.received_packets,
            self.sent_bytes - earlier.sent_bytes,
            self.sent_packets - earlier.sent_packets,
            self.repeated_packets - earlier.repeated_packets,
        )


@final
@dataclass(frozen=True, slots=True)
class HostResult:
    """How the command ended on one host."""

    host: int
    """Number of the host, and rank of its process; the first is 0."""
    exit_code: int
    """As a shell gives it: 128 and the signal's number for a process that a signal ended."""
    seconds: float
    """From the start of the run to the end of the process on this host."""
    was_ended: bool
    """Whether the lab told it to end, after another host had failed."""
    traffic: Traffic
    """What its interface received and sent during the run."""
    stdout: str | None = None
    """What it wrote to stdout; None unless asked for."""
    stderr: str | None = None
    """What it wrote to stderr; None unless asked for."""


@final
@dataclass(frozen=True, slots=True)
class RunResult:
    """How a command ended in the lab."""

    hosts: tuple[HostResult, ...]
    """One for each host, by number."""

    @property
    def seconds(self) -> float:
        """From the start of the run to the end of the last process."""
        return max(host.seconds for host in self.hosts)

    @property
    def first_failed(self) -> HostResult | None:
        """The first host, in time, that ended with another code than 0; one that the lab ended comes after others."""
        failed = [host for host in self.hosts if host.exit_code != 0]
        return min(failed, key=lambda host: (host.was_ended, host.seconds), default=None)

    @property
    def exit_code(self) -> int:
        """0 if the command ended so on all hosts; otherwise that of the first host that failed."""
        first = self.first_failed
        return 0 if first is None else first.exit_code

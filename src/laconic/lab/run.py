"""One command on all hosts of a network, from its start to the end of its last process."""

import logging
import signal
from collections.abc import Sequence
from functools import partial
from typing import final

from laconic.lab.losses import LinkLoss
from laconic.lab.network import Network
from laconic.lab.results import HostResult, OnOutput, RunResult, Traffic
from laconic.processes import GroupProcess, HeldSignals, Stream, WatchedProcesses
from laconic.units import format_seconds

_log = logging.getLogger(__name__)


@final
class Run:
    """What is going on while a command runs in a lab."""

    def __init__(
        self, network: Network, signals: HeldSignals, *, on_output: OnOutput | None, capture: bool, grace_seconds: float
    ) -> None:
        self._network = network
        self._on_output = on_output
        self._grace_seconds = grace_seconds
        hosts = range(network.num_hosts)
        self._captured: list[dict[Stream, list[str]]] | None = (
            [{"stdout": [], "stderr": []} for _ in hosts] if capture else None
        )
        self._cut: set[int] = set()
        self._processes = WatchedProcesses(
            signals, grace_seconds=grace_seconds, on_failure=self._tell_failure, on_signal=self._tell_signal
        )

    def conduct(
        self, command: Sequence[str], environments: Sequence[dict[str, str]], losses: Sequence[LinkLoss]
    ) -> RunResult:
        """Runs the command to its end on all hosts, and tells how it ended."""
        before = self._network.traffic()
        try:
            with self._processes:
                for host, environment in enumerate(environments):
                    inside, take = self._network.enter(host), partial(self._take_line, host)
                    self._processes.start(host, command, environment, output="apart", inside=inside, on_line=take)
                for loss in losses:
                    self._processes.later(loss.after_seconds, partial(self._lose_link, loss))
                self._processes.wait()
        finally:
            for host in self._cut:
                self._network.mend(host)
        after = self._network.traffic()
        return RunResult(
            tuple(self._result(process, after[host] - before[host]) for host, process in enumerate(self._processes.all))
        )

    def _result(self, process: GroupProcess, traffic: Traffic) -> HostResult:
        return HostResult(
            host=process.number,
            exit_code=process.exit_code or 0,
            seconds=self._processes.ended_seconds[process.number],
            was_ended=process.was_ended,
            traffic=traffic,
            stdout=self._text(process.number, "stdout"),
            stderr=self._text(process.number, "stderr"),
        )

    def _take_line(self, host: int, stream: Stream, line: str) -> None:
        if self._captured is not None:
            self._captured[host][stream].append(line)
        if self._on_output is not None:
            self._on_output(host, stream, line)

    def _text(self, host: int, stream: Stream) -> str | None:
        if self._captured is None:
            return None
        return "".join(f"{line}\n" for line in self._captured[host][stream])

    def _tell_failure(self, process: GroupProcess) -> None:
        if self._processes.running:
            _log.warning(
                "Host %d failed with exit code %s after %s. The others have %s to end by themselves.",
                process.number,
                process.exit_code,
                format_seconds(self._processes.ended_seconds[process.number]),
                format_seconds(self._grace_seconds),
            )

    def _tell_signal(self, number: int) -> None:
        _log.warning(
            "%s: the hosts have %s to end; once more, and they are ended at once.",
            "Interrupted" if number == signal.SIGINT else f"Ended by {signal.Signals(number).name}",
            format_seconds(self._grace_seconds),
        )

    def _lose_link(self, loss: LinkLoss) -> None:
        self._network.cut(loss.host)
        self._cut.add(loss.host)
        _log.info("Host %d lost its link after %s.", loss.host, format_seconds(loss.after_seconds))

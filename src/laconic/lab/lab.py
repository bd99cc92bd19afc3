"""`Lab`: builds a network, runs commands in it, takes it down."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import final

from laconic.errors import ConfigError
from laconic.lab.environment import host_environment
from laconic.lab.link import parse_link
from laconic.lab.losses import LinkLoss
from laconic.lab.network import MAX_HOSTS, Network, build_network
from laconic.lab.requirements import check_requirements
from laconic.lab.results import OnOutput, RunResult, Traffic
from laconic.lab.run import Run
from laconic.processes import HeldSignals, unwinding_signals


@final
class Lab:
    """Hosts with addresses and links of their own, for as long as the `with` block runs; whatever ends it.

    A host is known by its number, which is the rank of its process; the first is 0. While the lab is up, SIGTERM and
    SIGHUP raise SystemExit in the main thread if they would have ended the process, so that it is taken down.

    Args:
        hosts: How many hosts.
        link: The rate of each host's link, each way, as tc writes it ("1gbit", "100mbit"); "none" sets no limit.
    """

    def __init__(self, *, hosts: int, link: str) -> None:
        if not 1 <= hosts <= MAX_HOSTS:
            raise ConfigError(f"A lab has 1 to {MAX_HOSTS} hosts, not {hosts}.")
        self.num_hosts = hosts
        self.link = link
        self._rate = parse_link(link)
        self._network: Network | None = None
        self._stack = ExitStack()
        self._num_runs = 0

    def __enter__(self) -> "Lab":
        assert self._network is None, "this lab is up already"
        check_requirements()
        try:
            self._stack.enter_context(unwinding_signals())
            with HeldSignals():
                self._network = build_network(self.num_hosts, self._rate)
                self._stack.callback(self._remove)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The IPv4 address of each host."""
        return tuple(self._up.name.address(host) for host in range(self.num_hosts))

    @property
    def interfaces(self) -> tuple[str, ...]:
        """The name of each host's interface, as the host sees it."""
        return tuple(self._up.name.interface(host) for host in range(self.num_hosts))

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The network namespace of each host, for `ip netns exec`."""
        return tuple(self._up.name.host(host) for host in range(self.num_hosts))

    def traffic(self) -> tuple[Traffic, ...]:
        """Returns what each host's interface received and sent since the lab was built."""
        return self._up.traffic()

    def set_link(self, link: str) -> None:
        """Gives all links another rate; also while a command runs, from `on_output`.

        Args:
            link: As for the lab itself.
        """
        self._up.limit(parse_link(link))
        self.link = link

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        on_output: OnOutput | None = None,
        capture: bool = False,
        losses: Sequence[LinkLoss] = (),
        grace_seconds: float = 60.0,
    ) -> RunResult:
        """Runs a command once on each host, with torchrun's variables set, and waits for all of them.

        When one host fails, the others have `grace_seconds` to end by themselves; then they get SIGTERM, and at last
        SIGKILL. SIGINT, SIGTERM or SIGHUP to this process is passed on to the hosts, which have `grace_seconds`, and
        takes its usual effect afterwards. Links that were lost are whole again when this returns.

        Args:
            command: The program and its arguments; the program is looked up on PATH.
            environment: Variables for all hosts, which win over this process's and over the lab's own.
            on_output: Called with (host, "stdout" or "stderr", line) for each line as it comes.
            capture: Whether to keep all output in the result.
            losses: Links that fail while the command runs.
            grace_seconds: See above.
        """
        network = self._up
        environments = [
            host_environment(network.name, host, self.num_hosts, run=self._num_runs, extra=environment)
            for host in range(self.num_hosts)
        ]
        self._check(command, environments[0], losses)
        self._num_runs += 1
        with HeldSignals() as signals:
            run = Run(network, signals, on_output=on_output, capture=capture, grace_seconds=grace_seconds)
            return run.conduct(command, environments, losses)

    @property
    def _up(self) -> Network:
        if self._network is None:
            raise ConfigError("This lab is not up: use it inside `with Lab(...) as lab:`.")
        return self._network

    def _check(self, command: Sequence[str], environment: Mapping[str, str], losses: Sequence[LinkLoss]) -> None:
        if not command:
            raise ConfigError("There is no command to run on the hosts.")
        if shutil.which(command[0], path=environment.get("PATH", os.defpath)) is None:
            raise ConfigError(f"There is no command {command[0]!r} on PATH. Name one that is, or its path.")
        for loss in losses:
            if not 0 <= loss.host < self.num_hosts:
                raise ConfigError(
                    f"Host {loss.host} cannot lose its link: the {self.num_hosts} hosts are 0 to {self.num_hosts - 1}."
                )

    def _remove(self) -> None:
        network, self._network = self._network, None
        if network is not None:
            with HeldSignals():
                network.remove()

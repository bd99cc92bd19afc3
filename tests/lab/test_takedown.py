import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from laconic.lab import Lab, LabError, names, network

NamespacesOf = Callable[[int], list[str]]
WaitForEnd = Callable[[list[int]], None]

# A process with a lab; its hosts print the number of a process and of a child, and then wait for long.
_OWNER = """
import signal, sys
# A shell that runs the tests in the background has them ignore Ctrl-C, and nohup has them ignore a hang-up.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from laconic.lab import Lab
with Lab(hosts=2, link="100mbit") as lab:
    show = lambda host, stream, line: print(line, flush=True)
    lab.run(["sh", "-c", sys.argv[2]], on_output=show, grace_seconds=float(sys.argv[1]))
"""
_WAIT = "sleep 300 & echo $$ $!; wait"
_WAIT_STUBBORNLY = "trap '' INT TERM HUP; sleep 300 & echo $$ $!; while :; do sleep 0.1; done"


class Owner:
    """A process of the test's own that has a lab up, with a command on each of its two hosts."""

    def __init__(self, script: str = _WAIT, grace: float = 30.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(grace), script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pids = [int(pid) for _ in range(2) for pid in self.process.stdout.readline().split()]

    def end(self) -> int:
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def start_owner() -> Iterator[Callable[..., Owner]]:
    started: list[Owner] = []

    def start(*arguments: object) -> Owner:
        started.append(Owner(*arguments))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for owner in started:
        owner.process.kill()
        owner.process.communicate()


@pytest.mark.parametrize("script", ["exit 0", "exit 5"])
def test_a_lab_is_gone_after_success_and_after_failure(script: str, namespaces_of: NamespacesOf) -> None:
    with Lab(hosts=2, link="1gbit") as lab:
        assert len(namespaces_of(os.getpid())) == 3
        lab.run(["sh", "-c", script])
    assert namespaces_of(os.getpid()) == []


def test_a_lab_is_gone_after_an_exception(namespaces_of: NamespacesOf) -> None:
    with pytest.raises(ZeroDivisionError), Lab(hosts=2, link="1gbit"):
        raise ZeroDivisionError
    assert namespaces_of(os.getpid()) == []


def test_a_network_that_cannot_be_finished_is_taken_down_and_the_command_named(
    namespaces_of: NamespacesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_SHAPE", "no-such-qdisc rate {rate}bit")
    with pytest.raises(LabError, match=r"`tc -n laconic-\S+-host0 qdisc replace dev lab\d+h0 root no-such-qdisc"):
        Lab(hosts=2, link="1gbit").__enter__()
    assert namespaces_of(os.getpid()) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -signal.SIGINT)]
)
def test_a_signal_to_the_owner_ends_the_hosts_and_takes_the_lab_down(
    number: signal.Signals,
    code: int,
    start_owner: Callable[..., Owner],
    namespaces_of: NamespacesOf,
    wait_for_end: WaitForEnd,
) -> None:
    owner = start_owner()
    assert len(namespaces_of(owner.process.pid)) == 3
    owner.process.send_signal(number)
    assert owner.end() == code
    assert namespaces_of(owner.process.pid) == []
    wait_for_end(owner.pids)


def test_hosts_that_do_not_heed_the_signal_are_killed_after_the_grace_period(
    start_owner: Callable[..., Owner], namespaces_of: NamespacesOf, wait_for_end: WaitForEnd
) -> None:
    owner = start_owner(_WAIT_STUBBORNLY, 0.3)
    owner.process.send_signal(signal.SIGTERM)
    assert owner.end() == 143
    assert namespaces_of(owner.process.pid) == []
    wait_for_end(owner.pids)


def test_a_second_signal_does_not_wait_for_the_grace_period(
    start_owner: Callable[..., Owner], namespaces_of: NamespacesOf, wait_for_end: WaitForEnd
) -> None:
    owner = start_owner(_WAIT_STUBBORNLY, 1000.0)
    owner.process.send_signal(signal.SIGINT)
    time.sleep(0.3)  # two of a kind at one moment would be one
    owner.process.send_signal(signal.SIGINT)
    assert owner.end() == -signal.SIGINT
    assert namespaces_of(owner.process.pid) == []
    wait_for_end(owner.pids)


def test_what_a_killed_owner_left_is_removed_at_the_next_start_and_a_living_lab_is_not(
    start_owner: Callable[..., Owner], namespaces_of: NamespacesOf, wait_for_end: WaitForEnd
) -> None:
    killed, living = start_owner(), start_owner()
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    # The command dies with its lab; its children, and the names, only when a lab starts again.
    wait_for_end(killed.pids[::2])
    assert len(namespaces_of(killed.process.pid)) == 3
    with Lab(hosts=1, link="none"):
        assert namespaces_of(killed.process.pid) == []
        assert len(namespaces_of(living.process.pid)) == 3
    wait_for_end(killed.pids)
    assert all(names._start_ticks(pid) is not None for pid in living.pids)


def test_an_owner_is_told_from_a_later_process_with_its_number() -> None:
    ticks = names._start_ticks(os.getpid())
    assert ticks is not None
    assert names.LabName(0, os.getpid(), ticks).owner_lives()
    assert not names.LabName(0, os.getpid(), ticks - 1).owner_lives()


def test_a_process_that_nobody_collected_yet_is_no_owner() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert names._start_ticks(process.pid) is None
    process.wait()


def test_labs_that_start_at_the_same_moment_choose_different_numbers() -> None:
    numbers: list[str] = []
    together = threading.Barrier(4)

    def build() -> None:
        together.wait()
        with Lab(hosts=1, link="none") as lab:
            numbers.append(lab.addresses[0])
            together.wait()

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(numbers)) == 4


def test_signal_handlers_are_given_back() -> None:
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in watched]
    with Lab(hosts=1, link="none") as lab:
        lab.run(["true"])
    assert [signal.getsignal(number) for number in watched] == before

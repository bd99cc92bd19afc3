"""What the tests of the lab share. They need root and iproute2, and fail without: a lab that cannot run is no lab.

All traffic stays between the namespaces that a test made; only processes that a test started are signalled.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from tests.one_lab import one_lab

from laconic.lab import names

# transfer.py SENDERS RECEIVERS BYTES: each sender sends so many bytes to each receiver, which says how long it took.
_TRANSFER = """
import os, socket, sys, time
senders, receivers = ([int(n) for n in part.split(",")] for part in sys.argv[1:3])
num_bytes, rank = int(sys.argv[3]), int(os.environ["RANK"])
subnet = os.environ["MASTER_ADDR"].rpartition(".")[0]
if rank in receivers:
    server = socket.create_server((f"{subnet}.{rank + 1}", 4000), backlog=16)
    server.settimeout(60)
    peers = [server.accept()[0] for _ in senders]
    started = time.monotonic()
    for peer in peers:
        peer.sendall(b"!")
    got = 0
    for peer in peers:
        while data := peer.recv(1 << 16):
            got += len(data)
    print(got, time.monotonic() - started)
elif rank in senders:
    links = []
    for receiver in receivers:
        while True:
            try:
                links.append(socket.create_connection((f"{subnet}.{receiver + 1}", 4000), timeout=60))
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
    for link in links:
        link.recv(1)
    piece = bytes(10_000)
    for _ in range(num_bytes // len(piece)):
        for link in links:
            link.sendall(piece)
    for link in links:
        link.shutdown(socket.SHUT_WR)
        link.recv(1)
"""


def _transfer(senders: str, receivers: str, num_bytes: int) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _TRANSFER, senders, receivers, str(num_bytes)]


@pytest.fixture
def transfer() -> Callable[[str, str, int], list[str]]:
    """Makes the command that sends bytes between hosts."""
    return _transfer


def _namespaces_of(pid: int) -> list[str]:
    return [name for lab, namespaces in names.list_labs().items() if lab.pid == pid for name in namespaces]


@pytest.fixture
def namespaces_of() -> Callable[[int], list[str]]:
    """Lists the namespaces that a process's labs have at the moment."""
    return _namespaces_of


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test takes down what it built."""
    with one_lab():
        yield
        assert _namespaces_of(os.getpid()) == []


def _wait_for_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while running := [pid for pid in pids if names._start_ticks(pid) is not None]:
        assert time.monotonic() < deadline, f"processes {running} still run"
        time.sleep(0.02)


@pytest.fixture
def wait_for_end() -> Callable[[list[int]], None]:
    """Waits until processes are gone, and fails if they stay."""
    return _wait_for_end

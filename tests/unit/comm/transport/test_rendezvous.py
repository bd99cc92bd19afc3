import re
import socket
import threading
import time

import pytest
from tests.processes.rank_processes import environments, free_port

from laconic.comm import connect
from laconic.comm.transport import _telling
from laconic.comm.transport._rendezvous import meet, open_store
from laconic.errors import CommunicationError
from laconic.ranks import RankAddress

GOOD = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_a_port_in_use_is_said_at_once_with_address_and_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        begin = time.monotonic()
        with pytest.raises(CommunicationError, match=rf"127\.0\.0\.1, but port {port} is in use.*MASTER_PORT"):
            connect({**GOOD, "RANK": "0", "MASTER_PORT": str(port)}, timeout=30)
        assert time.monotonic() - begin < 5


def test_a_place_where_nobody_listens_is_said_when_the_time_is_over():
    port = free_port()
    begin = time.monotonic()
    with pytest.raises(CommunicationError, match=rf"127\.0\.0\.1 port {port}, where rank 0 should be.*MASTER_ADDR"):
        connect({**GOOD, "MASTER_PORT": str(port)}, timeout=0.5)
    assert 0.3 < time.monotonic() - begin < 3


def test_ranks_that_do_not_come_are_named_and_the_machine_of_those_who_did():
    present = rf"rank 0 on {socket.gethostname()} did"
    told = rf"Ranks 1, 2 of 3 did not come to 127\.0\.0\.1 port \d+ in time; {present}.*--node-rank.*RANK"
    with pytest.raises(CommunicationError, match=told):
        connect(environments(3)[0], timeout=0.5)


def test_whoever_waits_for_other_ranks_says_so_again_and_again(monkeypatch, caplog):
    monkeypatch.setattr(_telling, "_FIRST_SECONDS", 0.05)
    monkeypatch.setattr(_telling, "_AGAIN_SECONDS", 0.1)
    first, second, _ = environments(3)
    with pytest.raises(CommunicationError):
        connect(second, timeout=0.5)
    where = f"at 127.0.0.1 port {first['MASTER_PORT']}"
    assert caplog.messages.count(f"Rank 1 waits for rank 0 {where}: nobody answers there yet.") >= 2
    with pytest.raises(CommunicationError):
        connect(first, timeout=0.5)
    assert caplog.messages.count(f"Rank 0 waits for ranks 1, 2 of 3 {where}.") >= 2
    # Once a wait is over, nothing is said of it.
    num_said = len(caplog.messages)
    time.sleep(0.3)
    assert len(caplog.messages) == num_said


def test_two_processes_with_the_same_rank_are_told_to_all_who_wait():
    port, errors = free_port(), []

    def come(rank):
        place = RankAddress(rank, 3, "127.0.0.1", port, launcher_keeps_store=False)
        with pytest.raises(CommunicationError) as raised:
            meet(place, time.monotonic() + 30)
        errors.append(str(raised.value))

    threads = [threading.Thread(target=come, args=(rank,)) for rank in (0, 1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    here = socket.gethostname()
    assert len(errors) == 3
    # The store goes with rank 0, which may be the first to hear it.
    told = [error for error in errors if re.search(rf"started as rank 1, on .+ and on {here}\.", error)]
    assert len(told) >= 2
    assert all("--node-rank" in error for error in told)


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_the_store_listens_at_its_own_address_only(address):
    place = RankAddress(0, 2, address, free_port(), launcher_keeps_store=False)
    store = open_store(place, time.monotonic() + 5)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", place.port), timeout=1)
    socket.create_connection((address, place.port), timeout=1).close()
    del store

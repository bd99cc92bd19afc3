import socket
import time

import pytest
from tests.processes.rank_processes import environments, free_port

from laconic.comm import connect
from laconic.comm.transport._rendezvous import open_store
from laconic.errors import CommunicationError
from laconic.ranks import Place

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


def test_ranks_that_do_not_come_are_named():
    with pytest.raises(CommunicationError, match=r"Ranks 1, 2 of 3 did not come to 127\.0\.0\.1 port"):
        connect(environments(3)[0], timeout=0.5)


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost"])
def test_the_store_listens_at_its_own_address_only(address):
    place = Place(0, 2, address, free_port(), launcher_keeps_store=False)
    store = open_store(place, time.monotonic() + 5)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", place.port), timeout=1)
    socket.create_connection((address, place.port), timeout=1).close()
    del store

import subprocess
import sys
from collections.abc import Callable

import pytest

from laconic.lab import Lab

Transfer = Callable[[str, str, int], list[str]]


def test_every_host_reaches_every_other(transfer: Transfer) -> None:
    with Lab(hosts=3, link="none") as lab:
        for receiver, senders in ((0, "1,2"), (1, "0,2"), (2, "0,1")):
            result = lab.run(transfer(senders, str(receiver), 10_000), capture=True)
            assert result.exit_code == 0, result
            assert (result.hosts[receiver].stdout or "").split()[0] == "20000"


def test_no_host_reaches_the_outside_and_each_has_a_loopback_of_its_own() -> None:
    code = """
import errno, os, socket
try:
    socket.create_connection(("192.0.2.2", 9), timeout=5)
except OSError as error:
    print(errno.errorcode[error.errno])
# The same port on all hosts at once: loopback is there, and nobody else's.
server = socket.create_server(("127.0.0.1", 4001))
socket.create_connection(("127.0.0.1", 4001), timeout=5).close()
print(sorted(name for _, name in socket.if_nameindex()))
"""
    with Lab(hosts=2, link="1gbit") as lab:
        result = lab.run([sys.executable, "-I", "-S", "-c", code], capture=True)
        for host, interface in zip(result.hosts, lab.interfaces, strict=True):
            assert host.stdout == f"ENETUNREACH\n{sorted([interface, 'lo'])}\n", host.stderr


# One sender is held back by its own link, two that send to one host by that host's.
@pytest.mark.parametrize(("senders", "receivers"), [("0", "1,2"), ("1,2", "0")], ids=["sending", "receiving"])
def test_a_link_carries_no_more_than_its_rate(senders: str, receivers: str, transfer: Transfer) -> None:
    with Lab(hosts=3, link="20mbit") as lab:
        # 2.5 MB through one link: a second at 20 mbit, of which a burst may save a little.
        result = lab.run(transfer(senders, receivers, 1_250_000), capture=True)
        assert result.exit_code == 0, result
        seconds = [float(host.stdout.split()[1]) for host in result.hosts if host.stdout]
        assert max(seconds) >= 0.8


def test_links_take_another_rate_also_while_a_command_runs(transfer: Transfer) -> None:
    with Lab(hosts=2, link="none") as lab:
        # 2.5 MB: a second at 20 mbit, half a minute at 640 kbit.
        for link, least, most in (("20mbit", 0.8, 20.0), ("none", 0.0, 0.8), ("20mbit", 0.8, 20.0)):
            lab.set_link(link)
            seconds = float(lab.run(transfer("0", "1", 2_500_000), capture=True).hosts[1].stdout.split()[1])
            assert lab.link == link
            assert least <= seconds <= most
        lab.set_link("640kbit")
        command = ["sh", "-c", 'echo under way; exec "$@"', "sh", *transfer("0", "1", 2_500_000)]
        result = lab.run(command, capture=True, on_output=lambda *_: lab.set_link("20mbit"))
        assert float(result.hosts[1].stdout.split()[-1]) < 20.0


@pytest.mark.parametrize(("link", "is_shaped"), [("100mbit", True), ("none", False)])
def test_both_ends_of_each_link_are_shaped_unless_the_link_is_none(link: str, is_shaped: bool) -> None:
    with Lab(hosts=2, link=link) as lab:
        switch = lab.namespaces[0].replace("host0", "switch")
        for namespace, num_ends in ((lab.namespaces[0], 1), (lab.namespaces[1], 1), (switch, 2)):
            shown = subprocess.run(["tc", "-n", namespace, "qdisc"], capture_output=True, text=True, check=True).stdout
            assert shown.count("rate 100Mbit burst 68Kb") == (num_ends if is_shaped else 0), shown


def test_the_counters_count_what_was_sent_and_nothing_else(transfer: Transfer) -> None:
    num_bytes = 1_000_000
    with Lab(hosts=3, link="1gbit") as lab:
        # Long enough for the kernel to announce an address, had it made one up.
        silent = lab.run(["sleep", "1.5"])
        assert [host.traffic.received_bytes for host in silent.hosts] == [0, 0, 0]
        sender, receiver, bystander = lab.run(transfer("0", "1", num_bytes)).hosts
        assert num_bytes <= sender.traffic.sent_bytes <= 1.1 * num_bytes
        assert num_bytes <= receiver.traffic.received_bytes <= 1.1 * num_bytes
        assert 0 < receiver.traffic.received_packets < num_bytes / 1000
        assert bystander.traffic.received_bytes + bystander.traffic.sent_bytes < 0.01 * num_bytes
        # Counted from the beginning of a run in its result, from that of the lab here.
        assert lab.run(["true"]).hosts[1].traffic.received_bytes < 0.01 * num_bytes
        assert lab.traffic()[1].received_bytes >= num_bytes


def test_two_labs_at_once_share_nothing(transfer: Transfer) -> None:
    with Lab(hosts=2, link="1gbit") as one, Lab(hosts=2, link="none") as other:
        for names in ("addresses", "interfaces", "namespaces"):
            assert not set(getattr(one, names)) & set(getattr(other, names))
        assert one.addresses[0].rpartition(".")[0] != other.addresses[0].rpartition(".")[0]
        assert one.run(transfer("0", "1", 100_000)).exit_code == 0
        assert other.traffic()[1].received_bytes == 0
        assert other.run(transfer("0", "1", 100_000)).exit_code == 0


def test_names_of_interfaces_fit_the_largest_lab() -> None:
    from laconic.lab.names import NUM_LABS, LabName
    from laconic.lab.network import MAX_HOSTS

    last = LabName(NUM_LABS - 1, 4_194_304, 10**12)
    assert max(map(len, (last.bridge, last.interface(MAX_HOSTS - 1), last.port(MAX_HOSTS - 1)))) <= 15
    assert last.address(MAX_HOSTS - 1) == "10.77.255.250"

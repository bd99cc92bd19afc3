"""The network of a lab: a namespace per host, and one with a bridge that joins them; each cable limited both ways.

Only this file knows how a lab is laid out. Nothing is made in the machine's own namespace: interfaces are born in the
namespace that they belong to, and no host has a route to anything but the others.
"""

import json
from dataclasses import dataclass
from typing import final

from laconic.lab import iproute
from laconic.lab.iproute import LabError
from laconic.lab.leftovers import one_at_a_time, remove_leftovers, remove_namespaces
from laconic.lab.names import NUM_LABS, LabName, free_name
from laconic.lab.results import Traffic

MAX_HOSTS = 250
# A packet of the kernel has up to 64 KB, and more burst than that lets small messages pass as if there were no limit.
# The latency is that of a full queue, beyond which packets are dropped.
_SHAPE = "tbf rate {rate}bit burst 68kb latency 50ms"


@final
@dataclass(frozen=True, slots=True)
class Network:
    """A built network; `remove` it in the end."""

    name: LabName
    num_hosts: int

    def traffic(self) -> tuple[Traffic, ...]:
        """Returns what each host received and sent since the network was built."""
        shown = json.loads(iproute.call("ip", "-s", "-j", "link", "show", namespace=self.name.switch))
        counters = {link["ifname"]: link["stats64"] for link in shown}
        # What a host receives is what its port at the switch sends; so one call serves all.
        ports = [counters[self.name.port(host)] for host in range(self.num_hosts)]
        return tuple(
            Traffic(
                port["tx"]["bytes"],
                port["tx"]["packets"],
                port["rx"]["bytes"],
                port["rx"]["packets"],
                self._repeated_packets(host),
            )
            for host, port in enumerate(ports)
        )

    def _repeated_packets(self, host: int) -> int:
        shown = iproute.call("ip", "netns", "exec", self.name.host(host), "cat", "/proc/net/snmp")
        names, values = (line.split() for line in shown.splitlines() if line.startswith("Tcp:"))
        return int(values[names.index("RetransSegs")])

    def enter(self, host: int) -> list[str]:
        """Returns the command that becomes, on a host, the command that follows it."""
        tool = iproute.find_tool("ip")
        assert tool is not None, "a lab was built without ip"
        return [tool, "netns", "exec", self.name.host(host)]

    def cut(self, host: int) -> None:
        """Takes a host's link away at the switch: nobody is told, packets are lost."""
        iproute.call("ip", "link", "set", "dev", self.name.port(host), "down", namespace=self.name.switch)

    def mend(self, host: int) -> None:
        """Gives a host its link back."""
        iproute.call("ip", "link", "set", "dev", self.name.port(host), "up", namespace=self.name.switch)

    def limit(self, rate: int | None) -> None:
        """Lets each link carry `rate` bits per second each way from now on, or what it can if None.

        What waits in a link's queue is lost, and TCP sends it again.
        """
        name, hosts = self.name, range(self.num_hosts)
        ends = {name.host(host): [name.interface(host)] for host in hosts}
        for namespace, devices in {**ends, name.switch: [name.port(host) for host in hosts]}.items():
            if rate is not None:
                lines = [f"qdisc replace dev {device} root {_SHAPE.format(rate=rate)}" for device in devices]
            elif "tbf" in iproute.call("tc", "qdisc", "show", namespace=namespace):
                lines = [f"qdisc del dev {device} root" for device in devices]
            else:
                continue
            iproute.call_all("tc", lines, namespace=namespace)

    def remove(self) -> None:
        """Takes all of it down, with every process inside."""
        hosts = [self.name.host(host) for host in range(self.num_hosts)]
        remove_namespaces([*hosts, self.name.switch])


def build_network(num_hosts: int, rate: int | None) -> Network:
    """Builds a network of hosts whose links carry `rate` bits per second each way, or what they can if None."""
    with one_at_a_time():
        remove_leftovers()
        name = free_name()
        if name is None:
            raise LabError(f"There are {NUM_LABS} labs on this machine already. End one of them first.")
        network = Network(name, num_hosts)
        try:
            iproute.call_all("ip", _create(network))
        except BaseException:
            network.remove()
            raise
    try:
        _set_up(network, rate)
    except BaseException:
        network.remove()
        raise
    return network


def _create(network: Network) -> list[str]:
    name, hosts = network.name, range(network.num_hosts)
    return [
        f"netns add {name.switch}",
        *(f"netns add {name.host(host)}" for host in hosts),
        f"link add {name.bridge} netns {name.switch} type bridge mcast_snooping 0",
        *(
            f"link add {name.interface(host)} netns {name.host(host)} "
            f"type veth peer name {name.port(host)} netns {name.switch}"
            for host in hosts
        ),
    ]


def _set_up(network: Network, rate: int | None) -> None:
    name, hosts = network.name, range(network.num_hosts)
    # No address made up for IPv6, before a link is up: its announcements would be counted as traffic.
    switch = [f"link set dev {name.bridge} addrgenmode none", f"link set dev {name.bridge} up"]
    for host in hosts:
        port = name.port(host)
        switch += [f"link set dev {port} addrgenmode none", f"link set dev {port} master {name.bridge} up"]
    iproute.call_all("ip", switch, namespace=name.switch)
    for host in hosts:
        interface = name.interface(host)
        lines = [
            "link set dev lo up",
            f"link set dev {interface} addrgenmode none",
            f"addr add {name.address(host)}/24 dev {interface}",
            f"link set dev {interface} up",
        ]
        iproute.call_all("ip", lines, namespace=name.host(host))
    if rate is not None:
        network.limit(rate)

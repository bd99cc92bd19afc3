"""A network in a box: hosts with addresses and link rates of their own, on one machine. Knows nothing of training.

with Lab(hosts=4, link="1gbit") as lab:
    result = lab.run(["python", "train.py"], capture=True)
    print(result.exit_code, [host.traffic.received_bytes for host in result.hosts])

Needs Linux, root and iproute2; see docs/lab.md for what it builds and what it does not emulate.
"""

from laconic.lab.iproute import LabError
from laconic.lab.lab import Lab
from laconic.lab.link import parse_link
from laconic.lab.losses import LinkLoss, parse_loss, parse_seconds
from laconic.lab.requirements import check_requirements, find_obstacle
from laconic.lab.results import HostResult, OnOutput, RunResult, Traffic
from laconic.processes import Stream

__all__ = [
    "HostResult",
    "Lab",
    "LabError",
    "LinkLoss",
    "OnOutput",
    "RunResult",
    "Stream",
    "Traffic",
    "check_requirements",
    "find_obstacle",
    "parse_link",
    "parse_loss",
    "parse_seconds",
]

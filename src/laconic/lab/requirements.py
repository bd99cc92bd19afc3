"""Whether a lab can run on this machine: Linux, root with its capabilities, `ip` and `tc`. Changes nothing."""

import os
import re
import sys
from pathlib import Path

from laconic.lab.iproute import LabError, find_tool

# Bits of CapEff in /proc/self/status: a container's root may lack them.
_NET_ADMIN, _SYS_ADMIN = 12, 21


def find_obstacle() -> str | None:
    """Returns what keeps a lab from running here and what to do about it, in a sentence or two; None if nothing."""
    if sys.platform != "linux":
        return f"It needs Linux's network namespaces; this is {sys.platform}."
    if os.geteuid() != 0:
        return "It makes network namespaces, which only root may: run it with sudo."
    if not _has_capabilities():
        return (
            "It makes network namespaces, and this container's root may not: start the container with "
            "--privileged, or with --cap-add NET_ADMIN --cap-add SYS_ADMIN."
        )
    absent = [tool for tool in ("ip", "tc") if find_tool(tool) is None]
    if absent:
        return (
            f"{' and '.join(absent)} cannot be found. Install iproute2: "
            f"apt install iproute2 (Debian, Ubuntu), dnf install iproute iproute-tc (Fedora)."
        )
    return None


def check_requirements() -> None:
    """Raises LabError, with what to do instead, if a lab cannot run here."""
    obstacle = find_obstacle()
    if obstacle is not None:
        raise LabError(
            f"The lab cannot run here. {obstacle} Without a lab, `laconic train --ranks 4` trains with several ranks "
            f"on this machine, and torchrun on several machines."
        )


def _has_capabilities() -> bool:
    status = Path("/proc/self/status")
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status.read_text(), flags=re.MULTILINE)
    return effective is None or all(int(effective[1], 16) >> bit & 1 for bit in (_NET_ADMIN, _SYS_ADMIN))

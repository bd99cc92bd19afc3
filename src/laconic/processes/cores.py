"""How many threads each of several processes on this machine should use."""

import os
from collections.abc import Mapping
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def threads_per_rank(num_local_ranks: int, environ: Mapping[str, str] = os.environ) -> int:
    """Returns the threads for each of `num_local_ranks` processes: OMP_NUM_THREADS, or an equal share of the cores.

    torchrun sets OMP_NUM_THREADS to 1 where the user did not and starts several ranks: set it there.
    """
    assert num_local_ranks > 0
    # OpenMP allows a number for each level of nesting: "4,2".
    chosen = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if chosen.isascii() and chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    return max(1, num_usable_cores() // num_local_ranks)


def num_usable_cores() -> int:
    """Returns how many cores this process may use, by its affinity and by the quota of its control group."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(allowed, cpu_quota(_CGROUPS, _own_group()))))


def cpu_quota(root: Path, group: str) -> float:
    """Returns the cores that a control group and those above it allow; infinity if they set no limit."""
    folder = root / group.strip("/")
    quotas = [_quota(each / "cpu.max") for each in (folder, *folder.parents) if each.is_relative_to(root)]
    return min(quotas)


def _own_group() -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return "/"
    return next((line[3:] for line in lines if line.startswith("0::")), "/")


def _quota(file: Path) -> float:
    try:
        allowed, period = file.read_text().split()
        return float("inf") if allowed == "max" else int(allowed) / int(period)
    except (OSError, ValueError):
        return float("inf")

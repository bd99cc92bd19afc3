"""The environment of a host's process: torchrun's variables, as if each host were a machine with one process."""

import os
from collections.abc import Mapping

from laconic.lab.names import LabName
from laconic.processes import threads_per_rank

_FIRST_PORT = 29500
_NUM_PORTS = 1000


def host_environment(
    lab: LabName, host: int, num_hosts: int, *, run: int, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the variables of the process on `host`; `extra` wins over all others, `run` counts the lab's runs."""
    # Where this process itself runs under torchrun, its store is not the one of the lab.
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC_")}
    return {
        "OMP_NUM_THREADS": str(threads_per_rank(num_hosts, {})),
        # Lines come when they are printed, not when some buffer is full.
        "PYTHONUNBUFFERED": "1",
        **inherited,
        "RANK": str(host),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(num_hosts),
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(host),
        "MASTER_ADDR": lab.address(0),
        # Another one in each run: the last one's may still be closing.
        "MASTER_PORT": str(_FIRST_PORT + run % _NUM_PORTS),
        "GLOO_SOCKET_IFNAME": lab.interface(host),
        **(extra or {}),
    }

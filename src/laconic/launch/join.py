"""Brings the ranks together, however they were started.

communicator = join_ranks()
with communicator.transport:                # tells the others if this rank fails, and leaves
    check_agreement(communicator, facts)
    ...
"""

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist

from laconic.comm import Communicator, Ledger, LocalTransport, Transport, connect
from laconic.comm.transport import DEFAULT_TIMEOUT_SECONDS
from laconic.launch.environment import rank_environment
from laconic.processes import threads_per_rank


def join_ranks(
    environment: Mapping[str, str] | None = None, *, timeout: float = DEFAULT_TIMEOUT_SECONDS
) -> Communicator:
    """Returns how this rank talks to the others, when all of them have come; one rank alone talks to itself.

    A process group that exists is used, and left as it is. Otherwise the variables of torchrun or SLURM say who is
    there, and torch's threads become this rank's share of the machine, if they were more. Close its `transport`.

    Args:
        environment: variables; those of this process by default.
        timeout: seconds, for the ranks to come together and then for every wait.
    """
    transport = _transport(os.environ if environment is None else environment, timeout)
    return Communicator(transport, Ledger(transport.rank))


def _transport(environment: Mapping[str, str], timeout: float) -> Transport:
    if dist.is_initialized():
        return connect(environment, timeout=timeout)
    here = rank_environment(environment)
    if here is None:
        return LocalTransport()
    num_threads = threads_per_rank(here.num_local_ranks, environment)
    # Fewer may be what the program chose.
    if torch.get_num_threads() > num_threads:
        torch.set_num_threads(num_threads)
    return connect(here.variables(), timeout=timeout)

"""Brings the ranks together, however they were started.

communicator = join_ranks()
with communicator.transport:                # tells the others if this rank fails, and leaves
    check_agreement(communicator, facts)
    ...
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.distributed as dist

from laconic.comm import Communicator, Ledger, LocalTransport, Transport, connect
from laconic.comm.transport import DEFAULT_TIMEOUT_SECONDS
from laconic.launching.environment import rank_environment
from laconic.processes import threads_per_rank

_of_thread: ContextVar[Transport | None] = ContextVar("transport of this thread", default=None)
_joined: list[Transport] = []


@contextmanager
def joining_by(transport: Transport) -> Iterator[None]:
    """Inside, this thread is a rank: `join_ranks` gives it this transport."""
    token = _of_thread.set(transport)
    try:
        yield
    finally:
        _of_thread.reset(token)


def transport_of_thread() -> Transport | None:
    """Returns how this thread talks to others, where ranks are threads."""
    return _of_thread.get()


def announce_failure(error: BaseException) -> None:
    """Tells the ranks that this process has joined why it will not go on."""
    for transport in _joined:
        transport.announce_failure(error)


def join_ranks(
    environment: Mapping[str, str] | None = None, *, timeout: float = DEFAULT_TIMEOUT_SECONDS
) -> Communicator:
    """Returns how this rank talks to the others, when all of them have come; one rank alone talks to itself.

    A thread that is a rank stays one. A process group that exists is used, and left as it is. Otherwise the variables
    of torchrun or SLURM say who is there, and torch's threads become this rank's share of the machine, if they were
    more. Close its `transport`.

    Args:
        environment: variables; those of this process by default.
        timeout: seconds, for the ranks to come together and then for every wait.
    """
    transport = _transport(os.environ if environment is None else environment, timeout)
    return Communicator(transport, Ledger(transport.rank))


def _transport(environment: Mapping[str, str], timeout: float) -> Transport:
    by_thread = transport_of_thread()
    if by_thread is not None:
        return by_thread
    if dist.is_initialized():
        return connect(environment, timeout=timeout)
    here = rank_environment(environment)
    if here is None:
        return LocalTransport()
    num_threads = threads_per_rank(here.num_local_ranks, environment)
    # Fewer may be what the program chose.
    if torch.get_num_threads() > num_threads:
        torch.set_num_threads(num_threads)
    transport = connect(here.variables(), timeout=timeout)
    _joined.append(transport)
    return transport

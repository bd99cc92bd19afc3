"""How processes find each other: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them, and one store.

Rank 0 keeps the store, or the launcher does (torchrun's agent). It listens at MASTER_ADDR only, where that is an
address of this machine. We knock at the door ourselves before torch does: torch's own client takes more than twice its
timeout to say that nobody is there, and says it with pages of C++ frames.
"""

import errno
import json
import socket
import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from laconic.comm.transport._notes import left_key
from laconic.comm.transport._telling import telling
from laconic.errors import CommunicationError
from laconic.ranks import RankAddress, is_loopback, name_ranks

_KNOCK_SECONDS = 0.1
# A firewall drops what we send: another try costs nothing.
_CONNECT_SECONDS = 5.0
# Under this name, the message for all that a rank was started twice.
_TWICE = "twice"
_OWN_RANKS = (
    "with torchrun, give each machine its own --node-rank or use --rdzv-backend c10d; otherwise give each process its "
    "own RANK"
)


def open_store(place: RankAddress, deadline: float) -> Store:
    """Returns the store in which ranks leave notes, before `deadline` on the monotonic clock."""
    listening = _listen(place) if place.keeps_store else None
    if listening is None:
        _knock(place, deadline)
    try:
        return TCPStore(
            place.address,
            place.port,
            place.num_ranks,
            listening is not None,
            timeout=_until(deadline),
            wait_for_workers=False,
            master_listen_fd=listening,
        )
    except RuntimeError as error:
        raise CommunicationError(
            f"{place.address} port {place.port} answers, but not as the store of a training run: {_first_line(error)} "
            f"Is another program listening there? Choose another MASTER_PORT, the same for all ranks."
        ) from error


def meet(place: RankAddress, deadline: float) -> Store:
    """Returns the part of a store that belongs to this meeting, when all ranks have come to it."""
    while True:
        home = _enter(open_store(place, deadline), place)
        if home is not None:
            return _wait_for_all(home, place, deadline)
        time.sleep(_KNOCK_SECONDS)


def _enter(store: Store, place: RankAddress) -> Store | None:
    """Returns the part of `store` for this meeting; None if it is that of a meeting before, which rank 0 still keeps.

    A launcher's store serves several meetings, one after the other; that of rank 0 serves one, and goes.
    """
    try:
        meeting = store.add(f"laconic/meetings/{place.rank}", 1)
        if meeting == 1 or place.launcher_keeps_store:
            return PrefixStore(f"laconic/{meeting}", store)
        has_left = PrefixStore("laconic/1", store).check([left_key(place.rank)])
    except RuntimeError:
        return None
    if has_left:
        return None
    home = PrefixStore("laconic/1", store)
    key = _here(place.rank)
    first = json.loads(home.get(key))[1] if home.check([key]) else "another machine"
    message = (
        f"Two processes were started as rank {place.rank}, on {first} and on {socket.gethostname()}. Each of the "
        f"{place.num_ranks} ranks is started once: {_OWN_RANKS}, 0 to {place.num_ranks - 1}."
    )
    # Those who are here already wait for a rank that will not come.
    home.set(_TWICE, message)
    raise CommunicationError(message)


def _wait_for_all(home: Store, place: RankAddress, deadline: float) -> Store:
    keys = [_here(rank) for rank in range(place.num_ranks)]
    where = f"{place.address} port {place.port}"

    def missing() -> str:
        absent = [rank for rank, key in enumerate(keys) if not home.check([key])]
        return f"{name_ranks(absent) if absent else 'no rank'} of {place.num_ranks}"

    try:
        home.set(_here(place.rank), json.dumps([place.num_ranks, socket.gethostname()]))
        with telling(lambda: f"Rank {place.rank} waits for {missing()} at {where}."):
            while not home.check(keys):
                if home.check([_TWICE]):
                    raise CommunicationError(home.get(_TWICE).decode())
                if time.monotonic() > deadline:
                    raise CommunicationError(
                        f"{missing().capitalize()} did not come to {where} in time; {_describe_present(home, keys)} "
                        f"did. Look why the others did not start. Every rank is started once: {_OWN_RANKS}."
                    )
                time.sleep(_KNOCK_SECONDS)
        counts = [int(json.loads(home.get(key))[0]) for key in keys]
    except RuntimeError as error:
        raise CommunicationError(
            f"The store at {where} was lost while ranks came together: {place.keeper} has ended. Look at its output."
        ) from error
    if len(set(counts)) > 1:
        raise CommunicationError(f"Ranks were started with different WORLD_SIZE, in rank order: {counts}.")
    return home


def _here(rank: int) -> str:
    return f"here/{rank}"


def _describe_present(home: Store, keys: Sequence[str]) -> str:
    """Returns the ranks that have come, by machine: "ranks 0, 1 on alpha, rank 4 on beta"."""
    by_host: dict[str, list[int]] = {}
    for rank, key in enumerate(keys):
        if home.check([key]):
            by_host.setdefault(str(json.loads(home.get(key))[1]), []).append(rank)
    return ", ".join(f"{name_ranks(ranks)} on {host}" for host, ranks in by_host.items())


def join_existing() -> Store:
    """Returns a part of the store of the process group that exists, for one more meeting of its ranks."""
    store = dist.distributed_c10d._get_default_store()
    return PrefixStore(f"laconic/{store.add(f'laconic/meetings/{dist.get_rank()}', 1)}", store)


def _listen(place: RankAddress) -> int:
    """Returns the descriptor of a socket that listens for the other ranks."""
    try:
        family, _, _, _, where = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0]
        host = str(where[0])
        # Many machines give their own name a loopback address, under which the others would not find it.
        everywhere = is_loopback(host) and not is_loopback(place.address)
        if not everywhere:
            try:
                return socket.create_server((host, place.port), family=family).detach()
            except OSError as error:
                # An address that another machine, such as a gateway, passes on to this one.
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return socket.create_server(("", place.port), family=family, dualstack_ipv6=dual).detach()
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened at ({error})"
        raise CommunicationError(
            f"Rank 0 should keep the store at {place.address}, but port {place.port} {reason}. Choose another "
            f"MASTER_PORT, the same for all ranks, or end the process that holds it; is it another rank 0?"
        ) from error


def _knock(place: RankAddress, deadline: float) -> None:
    """Returns when somebody listens at the place; ranks may start before it does."""
    where = f"{place.address} port {place.port}"
    with telling(lambda: f"Rank {place.rank} waits for {place.keeper} at {where}: nobody answers there yet."):
        while True:
            left = deadline - time.monotonic()
            try:
                seconds = max(min(left, _CONNECT_SECONDS), _KNOCK_SECONDS)
                with socket.create_connection((place.address, place.port), timeout=seconds):
                    return
            except OSError as error:
                if left <= _KNOCK_SECONDS:
                    raise CommunicationError(
                        f"Nobody answers at {where}, where {place.keeper} should be: {error}. Check that it runs, that "
                        f"MASTER_ADDR and MASTER_PORT are right, and that no firewall is between."
                    ) from error
            time.sleep(_KNOCK_SECONDS)


def _until(deadline: float) -> timedelta:
    return timedelta(seconds=max(deadline - time.monotonic(), 1.0))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]

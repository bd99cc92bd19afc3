"""A process group of our own, for ranks that have met. On a GPU, NCCL is there beside gloo; that was never run."""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from laconic.comm.transport._telling import telling
from laconic.errors import CommunicationError
from laconic.ranks import RankAddress, is_loopback

_INTERFACE = "GLOO_SOCKET_IFNAME"


def make_group(store: Store, place: RankAddress, environment: Mapping[str, str], timeout: float) -> None:
    """Makes torch's default process group.

    Args:
        store: where the ranks find each other's addresses.
        place: which rank this is.
        environment: says which GPU is ours, by LOCAL_RANK.
        timeout: seconds, also for every operation of the group.
    """
    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    if on_gpu:
        torch.cuda.set_device(int(environment.get("LOCAL_RANK", place.rank % torch.cuda.device_count())))

    def words() -> str:
        return (
            f"Rank {place.rank} connects to the {place.num_ranks - 1} others, which have all come. If it cannot, set "
            f"{_INTERFACE} to the interface that joins them."
        )

    with _gloo_on(_loopback_interface() if is_loopback(place.address) else None), telling(words):
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                store=store,
                rank=place.rank,
                world_size=place.num_ranks,
                timeout=timedelta(seconds=timeout),
            )
        except RuntimeError as error:
            raise CommunicationError(
                f"All {place.num_ranks} ranks came to {place.address} port {place.port}, but they cannot connect to "
                f"each other: {str(error).strip().splitlines()[0]} Set {_INTERFACE} to the interface that joins them."
            ) from error


def _loopback_interface() -> str | None:
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


@contextmanager
def _gloo_on(interface: str | None) -> Iterator[None]:
    """Inside, gloo listens on one interface only, unless the user chose another; this variable alone can tell it."""
    if interface is None or _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = interface
    try:
        yield
    finally:
        del os.environ[_INTERFACE]

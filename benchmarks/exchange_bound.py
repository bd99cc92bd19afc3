"""The bound of an epoch on one host: compute + wire - overlap.

An epoch that moved nothing is replayed with a link. Its all_to_alls go over the wire one after the
other, in the order of their starts; at each wait the host stands still until the bytes are there.

    bound   = compute + rest + waited
    overlap = wire - rest - waited

`rest` are the bytes of gradients and loss at the link's rate: no work runs beside them. With one
all_to_all under way at a time, overlap is the sum over all of them of
min(seconds between start and wait, seconds on the wire).
"""

import statistics
from collections.abc import Mapping, Sequence

from exchange_rank import WAYS

Exchange = Mapping[str, float]


def bound_of(host: Mapping, rate: int | None) -> dict[str, float]:
    """Returns the bound of one host's epoch, and its parts.

    "wire" is the way, received or sent, with more bytes in the whole epoch. "bound in steps" takes
    the larger way of each exchange: bytes that are sent forward cannot make room for bytes that
    come backward.

    Args:
        host: findings of a rank, as exchange_rank.py has them.
        rate: bits per second of the host's link, each way; None has no wire at all.
    """
    exchanges, compute = host["exchanges"], statistics.median(host["computes"])
    way = max(WAYS, key=lambda way: host["of epoch"][way])

    def on_the_wire(num_bytes: float) -> float:
        return 0.0 if rate is None else 8 * num_bytes / rate

    rest = on_the_wire(host["of epoch"][way] - sum(each[way] for each in exchanges))
    wires = [on_the_wire(each[way]) for each in exchanges]
    waited = seconds_waited(exchanges, wires)
    larger_ways = [on_the_wire(max(each[way] for way in WAYS)) for each in exchanges]
    return {
        "bound": compute + rest + waited,
        "compute": compute,
        "wire": rest + sum(wires),
        "overlap": sum(wires) - waited,
        "bound in steps": compute + rest + seconds_waited(exchanges, larger_ways),
    }


def seconds_waited(exchanges: Sequence[Exchange], wires: Sequence[float]) -> float:
    """Returns how long a host stands still if its exchanges go over one wire, in order of start.

    Args:
        exchanges: "start" and "wait" of each, in seconds of an epoch in which nothing had to be waited for.
        wires: seconds that each takes on the wire.
    """
    events = [(each["start"], number, "start") for number, each in enumerate(exchanges)]
    events += [(each["wait"], number, "wait") for number, each in enumerate(exchanges)]
    waited = wire_is_free = 0.0
    arrivals: dict[int, float] = {}
    for second, number, kind in sorted(events, key=lambda event: event[0]):
        now = second + waited
        if kind == "start":
            wire_is_free = arrivals[number] = max(wire_is_free, now) + wires[number]
        else:
            waited += max(0.0, arrivals[number] - now)
    return waited

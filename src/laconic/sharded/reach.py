"""Reach: over how many hops rows of other ranks are computed here, so that their messages vanish.

    seconds of an epoch = 8 bytes on the busiest way of the busiest rank / link + extra operations / speed

are counted for reach 0, 1, 2, ... as long as they fall. The bytes are those of a rehearsed step, and of the constants,
which come once, a share for each epoch. The choice goes by numbers that are told, not measured: a run that is resumed
has to choose the same.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from laconic.attach.fixed_operators import why_not_recompute
from laconic.attach.remembered import REMEMBERED_BYTES_LIMIT
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.records import LedgerRecord
from laconic.sharded.axis import AxisExchange
from laconic.sharded.hops import find_hops
from laconic.sharded.placement import Placement
from laconic.sharded.trace import Traces

# Operations of a dense layer per second, of one core (a layer of 128 to 256 takes some 20 microseconds a row).
_FLOPS_PER_SECOND = 25e9
# Edges into rows of others that a reach chosen here may bring, for each edge of a rank.
_MOST_OVER_OWNED = 2
# Epochs that set-up is divided by.
_USUAL_EPOCHS = 100


def with_reach(placement: Placement, reach: int) -> Placement:
    """Returns the placement with the rows within `reach` hops computed here; all ranks call it together.

    Without any where a rank has fewer than two rows: torch would add a tensor of one row to one of many.
    """
    shard, communicator = placement.shard, placement.communicator
    if communicator.num_ranks == 1 or not reach:
        return replace(placement, hops=())
    with communicator.ledger.phase("setup"):
        if communicator.all_reduce(torch.tensor([shard.num_rows]), op="min") < 2:
            return replace(placement, hops=())
    assert isinstance(placement.sources, AxisExchange)
    hops = find_hops(placement.sources, shard.adjacency, shard.edge_weight, shard.node_ids, reach)
    return replace(placement, hops=hops)


def check_reach(traces: Traces, placement: Placement) -> None:
    """Raises unless every hop of the placement spares the model an exchange; the same on all ranks."""
    reach = len(placement.hops)
    if not reach:
        return
    reason = why_not_recompute(traces.model)
    if reason is not None:
        raise UnsupportedModelError(
            f"reach={reach} computes rows of other ranks here, and {reason}. Leave reach out: its rows are then "
            f"exchanged; or use GCNConv, SAGEConv (mean, sum), GINConv, GraphConv, SGConv or APPNP."
        )
    most = traces.of(replace(placement, hops=())).num_hops
    if reach > most:
        raise ConfigError(
            f"reach={reach}, but in a training step this model exchanges rows {most} times. Use reach={most}, with "
            f"which nothing but gradients travels, or less."
        )


def choose_reach(
    traces: Traces, placement: Placement, link_mbit: float, predict: Callable[[Placement], list[LedgerRecord]]
) -> Placement:
    """Returns the placement with the reach whose epochs are the shortest; all ranks call it together.

    Args:
        link_mbit: speed of a rank's link.
        predict: returns the traffic of this rank with a placement.
    """
    if placement.communicator.num_ranks == 1 or why_not_recompute(traces.model) is not None:
        return placement
    speed, trace = link_mbit * 1e6 / 8, traces.of(placement)
    flops, best, best_seconds = [trace.flops], placement, _seconds(placement, speed, [trace.flops], predict)
    for reach in range(1, trace.num_hops + 1):
        if reach > 1 and _has_too_many_edges(best):
            return best
        further = with_reach(placement, reach)
        flops.append(traces.of(further).flops)
        seconds = _seconds(further, speed, flops, predict)
        if seconds >= best_seconds:
            return best
        best, best_seconds = further, seconds
    return best


def _seconds(
    placement: Placement, speed: float, flops: list[int], predict: Callable[[Placement], list[LedgerRecord]]
) -> float:
    """Returns the seconds of an epoch that a reach is chosen by, of the rank for which they are the most.

    Args:
        speed: bytes per second.
        flops: of a step with 0, 1, ... hops, up to those of the placement.
    """
    shard, hops = placement.shard, placement.hops
    row_bytes = math.prod(shard.x.shape[1:]) * shard.x.element_size()
    num_rows = [hop.num_rows for hop in hops]
    if num_rows and num_rows[-1] * row_bytes > REMEMBERED_BYTES_LIMIT:
        own = math.inf
    else:
        records = predict(placement)
        way = max(_num_bytes(records, way) for way in ("sent", "received"))
        of_hop = np.diff([shard.num_rows, *num_rows])
        extra = sum(int(rows) * more for rows, more in zip(of_hop, np.diff(flops), strict=True))
        features = int(of_hop.sum()) * row_bytes / _USUAL_EPOCHS
        own = (way + features) / speed + extra / _FLOPS_PER_SECOND
    with placement.communicator.ledger.phase("setup"):
        return float(placement.communicator.all_reduce(torch.tensor([own], dtype=torch.float64), op="max"))


def _has_too_many_edges(placement: Placement) -> bool:
    """Whether the edges into the rows of the last hop, which the next hop needs, are too many for any rank."""
    own, communicator = placement.shard.adjacency, placement.communicator
    assert isinstance(placement.sources, AxisExchange)
    with communicator.ledger.phase("setup"):
        if len(placement.hops) == 1:
            degrees = torch.from_numpy(own.row_degrees.astype(np.int64))
            num_edges = int(placement.sources.lists.start(degrees).wait().sum())
        else:
            # A hop beyond the second is most of the graph.
            num_edges = own.num_edges * _MOST_OVER_OWNED + 1
        is_too_many = torch.tensor([int(num_edges > _MOST_OVER_OWNED * own.num_edges)])
        return bool(communicator.all_reduce(is_too_many, op="max"))


def _num_bytes(records: list[LedgerRecord], way: str) -> float:
    """Returns the bytes of a training step one way, and of set-up a share for an epoch."""
    shares = {"forward": 1.0, "backward": 1.0, "setup": 1 / _USUAL_EPOCHS}
    return sum(row.num_bytes * shares.get(row.phase, 0.0) for row in records if row.direction == way)

"""Which reach: the one that was asked for, if the model allows it; else the one with the shortest epochs.

    seconds of an epoch = 8 bytes on the busiest way of the busiest rank / link + extra operations / speed
    extra operations    = sum over hops j = 1..k of (rows of hop j) (F(k - j + 1) - F(k - j))

are counted for reach k = 0, 1, 2 as long as they fall. F(k) are the operations of a step on three rows and one row of
each hop: a row of hop j runs through the first k - j + 1 layers. The bytes are those of a rehearsed step, and of the
constants, which come once, a share for each epoch. All these numbers are told, none is measured: ranks have to choose
alike, and a run that is resumed has to choose the same.

A second hop brings edges, which takes long to learn. It is looked for only where it could win if it brought no row, and
where its edges and rows fit into half of the memory of every rank: machines with another memory may choose otherwise.
A hop beyond the second is most of the graph.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch

from laconic.attach.fixed_operators import why_not_recompute
from laconic.attach.remembered import REMEMBERED_BYTES_LIMIT
from laconic.comm.communicator import Communicator
from laconic.errors import ConfigError, UnsupportedModelError
from laconic.records import LedgerRecord
from laconic.sharded.coding import Coding
from laconic.sharded.hops import HopAxis, sparse_bytes
from laconic.sharded.placement import Placement
from laconic.sharded.plan import EDGE_BYTES, NODE_BYTES, memory_limit
from laconic.sharded.reach import with_reach
from laconic.sharded.trace import Traces
from laconic.sharded.trial import Trial
from laconic.sharded.worker import traffic_of

logger = logging.getLogger(__name__)

FLOPS_PER_SECOND = 25e9
"""Operations of matrix products per second, with what comes along with them (sparse products, dropout, ReLU).

Measured on one core of a busy machine, in CPU seconds: a step of SAGE 128-256-256-53 on debian did 42e9 (106e9
operations in 2.5 s), its dense products alone 95e9 to 120e9. Ranks that share a machine are slower. The constant is
told, not measured when a run starts: ranks have to choose alike, and a run that is resumed has to choose the same.
"""
_MOST_HOPS = 2
# Epochs that constants, which come once, are divided by: a run that is resumed may have more than it began with.
_USUAL_EPOCHS = 100


@final
@dataclass(frozen=True)
class Costs:
    """What a reach is chosen by.

    Args:
        link_mbit: speed of a rank's link.
        coding: how messages are written; None: as they are.
        traces: of the model, on the placements that are looked at.
        trial: returns the model on a tiny graph.
    """

    link_mbit: float
    coding: Coding | None
    traces: Traces
    trial: Callable[[], Trial]


def decide_reach(placement: Placement, reach: int | None, costs: Costs) -> Placement:
    """Returns the placement with the rows within some hops computed here; all ranks call it together.

    Args:
        reach: what is asked for; None: the reach with the shortest epochs among those that the model allows.
    """
    if reach is not None:
        return with_reach(placement, reach)
    if placement.communicator.num_ranks == 1 or why_not_recompute(costs.traces.model) is not None:
        return placement
    chosen, _ = shortest_epochs(placement, costs)
    if not chosen.hops:
        return chosen
    reason = costs.trial().why_not_hops(len(chosen.hops))
    # A trial that fails on one rank alone, for want of time or memory, counts for all.
    if not largest(float(reason is not None), placement.communicator):
        return chosen
    if reason is not None:
        logger.info("Rows of other ranks are exchanged, not computed here: tried on a tiny graph, %s.", reason)
    return placement


def check_asked_reach(placement: Placement, reach: int | None, traces: Traces, trial: Trial) -> None:
    """Raises, on all ranks, unless every hop asked for spares the model an exchange and changes nothing else."""
    if not reach or placement.communicator.num_ranks == 1:
        return
    computes = f"reach={reach} computes rows of other ranks here, and"
    reason = why_not_recompute(traces.model)
    if reason is not None:
        raise UnsupportedModelError(
            f"{computes} {reason}. Leave reach out: its rows are then exchanged; or use GCNConv, SAGEConv (mean, sum), "
            f"GINConv, GraphConv, SGConv or APPNP."
        )
    most = traces.of(placement).num_hops
    if reach > most:
        raise ConfigError(
            f"reach={reach}, but in a training step this model exchanges rows {most} times. Use reach={most}, with "
            f"which nothing but gradients travels, or less."
        )
    reason = trial.why_not_hops(reach)
    if reason is not None:
        raise UnsupportedModelError(
            f"{computes} this model is not the same then: tried on a tiny graph, {reason}. Leave reach out, or set "
            f"reach=0."
        )


def shortest_epochs(placement: Placement, costs: Costs) -> tuple[Placement, float]:
    """Returns the placement with the reach whose epochs are the shortest, and their seconds, as counted above.

    All ranks call it together.
    """
    trace = costs.traces.of(placement)
    flops, best, best_seconds = [trace.flops], placement, _seconds(placement, [trace.flops], costs)
    for reach in range(1, min(trace.num_hops, _MOST_HOPS) + 1):
        if reach > 1 and (not _fits(best) or _least_seconds(best, flops, costs) >= best_seconds):
            break
        further = with_reach(placement, reach)
        flops.append(costs.traces.of(further).flops)
        seconds = _seconds(further, flops, costs)
        if seconds >= best_seconds:
            break
        best, best_seconds = further, seconds
    return best, best_seconds


def _seconds(placement: Placement, flops: list[int], costs: Costs) -> float:
    """Returns the seconds of an epoch that a reach is chosen by, of the rank for which they are the most.

    Args:
        flops: of a step with 0, 1, ... hops, up to those of the placement.
    """
    shard, num_rows = placement.shard, [hop.num_rows for hop in placement.hops]
    row_bytes: float = shard.x[:1].nbytes
    if num_rows and num_rows[-1] * row_bytes > REMEMBERED_BYTES_LIMIT:
        own = math.inf
    else:
        records, share = traffic_of(costs.traces, placement, costs.coding), 1 / _USUAL_EPOCHS
        of_hop = np.diff([shard.num_rows, *num_rows])
        # Where a rank has too few rows for hops, there is one number of operations more.
        extra = sum(int(rows) * more for rows, more in zip(of_hop[::-1], np.diff(flops), strict=False))
        # Rows of others are taken to be as sparse as those here.
        row_bytes = min(row_bytes, sparse_bytes(shard.x) / max(shard.num_rows, 1))
        features = int(of_hop.sum()) * row_bytes * share
        own = (busiest_way(records, share) + features) * 8e-6 / costs.link_mbit + extra / FLOPS_PER_SECOND
    return largest(own, placement.communicator)


def _least_seconds(placement: Placement, flops: list[int], costs: Costs) -> float:
    """Returns the seconds of an epoch with one hop more, if that hop has no row of its own."""
    last = placement.hops[-1]
    # Sums of a hop's rows stay here: that axis moves nothing.
    block = replace(last.block, columns=HopAxis(last.block.rows, 1))
    further = replace(placement, hops=(*placement.hops, replace(last, block=block)))
    return _seconds(further, [*flops, costs.traces.of(further).flops], costs)


def _fits(placement: Placement) -> bool:
    """Whether the edges into the rows of the last hop, which the next hop needs, take at most half of any memory."""
    shard, communicator = placement.shard, placement.communicator
    with communicator.ledger.phase("setup"):
        degrees = torch.from_numpy(shard.adjacency.row_degrees.astype(np.int64))
        num_edges = shard.adjacency.num_edges + int(placement.exchange.start(degrees).wait().sum())
        row_bytes = NODE_BYTES + 2 * shard.x[:1].nbytes
        needed = torch.tensor([num_edges * EDGE_BYTES + placement.hops[-1].num_rows * row_bytes])
        return int(communicator.all_reduce(needed, op="max")) <= memory_limit(communicator) // 2


def busiest_way(records: list[LedgerRecord], share: float = 0.0) -> float:
    """Returns the bytes of a training step that a rank sends, or receives, and `share` of those of set-up."""
    shares = {"forward": 1.0, "backward": 1.0, "setup": share}

    def num_bytes(way: str) -> float:
        return sum(row.num_bytes * shares.get(row.phase, 0.0) for row in records if row.direction == way)

    return max(num_bytes("sent"), num_bytes("received"))


def largest(value: float, communicator: Communicator) -> float:
    """Returns the largest value of any rank; all ranks call it together."""
    with communicator.ledger.phase("setup"):
        return float(communicator.all_reduce(torch.tensor([value], dtype=torch.float64), op="max"))

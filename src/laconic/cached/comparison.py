"""Would exact exchange be faster than computing rows of other ranks here? By a count, as a reach is.

    exchange        8 (bytes of rows and their gradients, on the busiest way of the busiest rank) c / link
    gradient_only   (rows of others that a step computes, of the busiest rank) (operations of a row) / speed

c is the share of halo rows that a cover leaves, in rows and partial sums, of the rank for which they are the most. A
reach spares further bytes, so that exchange may be faster where this does not say so, and is not slower where it does.
"""

from laconic.cached.khop_halo import KHopHalo
from laconic.cached.turns import halo_seen
from laconic.errors import UnsupportedModelError
from laconic.sharded.edge_placement import find_covers
from laconic.sharded.miniature import NUM_ROWS
from laconic.sharded.placement import Placement
from laconic.sharded.reach_choice import FLOPS_PER_SECOND, busiest_way, largest
from laconic.sharded.trace import Traces


def faster_exchange(traces: Traces, placement: Placement, halo: KHopHalo, num_hops: int, link_mbit: float) -> str:
    """Returns in a sentence that exact exchange is the faster; nothing where it is not; all ranks call it together.

    Args:
        halo: the rows of others that are computed here.
        num_hops: as far as the loss depends on rows that change.
        link_mbit: speed of a rank's link.
    """
    try:
        trace, shard = traces.of(placement), halo.placement.shard
    except UnsupportedModelError:
        # Exchange cannot train it, on no rank.
        return ""
    seen = halo_seen(shard.adjacency, shard.train_mask.numpy(), num_hops)
    num_computed = shard.num_rows - placement.shard.num_rows + len(shard.halo_ids if seen is None else seen)
    computed = largest(num_computed * trace.flops / NUM_ROWS / FLOPS_PER_SECOND, placement.communicator)
    covers, num_halo = find_covers(placement, "cover"), placement.exchange.num_received
    num_vectors = num_halo if covers is None else int(covers.counts[:2].sum())
    share = largest(num_vectors, placement.communicator) / max(largest(num_halo, placement.communicator), 1.0)
    exchanged = largest(busiest_way(trace.records(1)), placement.communicator) * share * 8e-6 / link_mbit
    if exchanged >= computed:
        return ""
    return (
        f"The strategy exchange, which is exact, should be faster here: at {link_mbit:g} mbit its rows travel "
        f"{exchanged:.2g} s an epoch, and gradient_only computes {computed:.2g} s for rows of other ranks."
    )

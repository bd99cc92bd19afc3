"""Would exact exchange be faster than computing rows of other ranks here? By a count, as a reach is.

exchange        seconds of an epoch as `laconic.sharded.reach_choice` counts them: rows, sums and their gradients on
                the busiest way of the busiest rank, and rows that are computed, with a cover and the best reach
gradient_only   (rows of others that a step computes, of the busiest rank) (operations of a row) / speed
"""

from laconic.cached.khop_halo import KHopHalo
from laconic.cached.turns import halo_seen
from laconic.errors import UnsupportedModelError
from laconic.sharded.edge_placement import with_edges_at
from laconic.sharded.miniature import NUM_ROWS
from laconic.sharded.placement import Placement
from laconic.sharded.reach_choice import FLOPS_PER_SECOND, Costs, largest, shortest_epochs


def faster_exchange(placement: Placement, halo: KHopHalo, num_hops: int, costs: Costs) -> str:
    """Returns in a sentence that exact exchange is the faster; nothing where it is not; all ranks call it together.

    Traffic, phase "setup": that of a cover, and of hops that are looked at.

    Args:
        halo: the rows of others that are computed here.
        num_hops: as far as the loss depends on rows that change.
        costs: what the reach of an exchange is chosen by.
    """
    try:
        trace, shard = costs.traces.of(placement), halo.placement.shard
    except UnsupportedModelError:
        # Exchange cannot train it, on no rank.
        return ""
    seen = halo_seen(shard.adjacency, shard.train_mask.numpy(), num_hops)
    num_computed = shard.num_rows - placement.shard.num_rows + len(shard.halo_ids if seen is None else seen)
    computed = largest(num_computed * trace.flops / NUM_ROWS / FLOPS_PER_SECOND, placement.communicator)
    best, exchanged = shortest_epochs(with_edges_at(placement, "cover"), costs)
    if exchanged >= computed:
        return ""
    return (
        f"The strategy exchange, which is exact, should be faster here: at {costs.link_mbit:g} mbit rows of others "
        f"cost it {exchanged:.2g} s an epoch (with reach={len(best.hops)}, if the model allows it), and gradient_only "
        f"computes {computed:.2g} s for them."
    )

"""Rows of all nodes in one place and in one order, however ranks share them."""

from torch import Tensor

from laconic.comm import Communicator
from laconic.comm.gather import gather_rows
from laconic.graph import Shard


def gather_by_node(communicator: Communicator, shard: Shard, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns node ids, rising, and the row of each, on rank 0; nothing on others. Booked as evaluation.

    Args:
        shard: what this rank holds of the graph.
        rows: one for each row of `shard`.
    """
    with communicator.ledger.phase("evaluation"):
        gathered = gather_rows(communicator, rows[: shard.num_owned].contiguous(), root=0)
        node_ids = gather_rows(communicator, shard.node_ids[: shard.num_owned], root=0)
    order = node_ids.argsort()
    return node_ids[order], gathered[order]

"""Sums over ranks as a differentiable function, for statistics over all nodes.

    y = sum_r x_r               on every rank; x_r and y have the same shape
    dL/dx_r = sum_q dL_q/dy     L = sum_q L_q

The second sum is there because every rank's loss L_q depends on y.
"""

from torch import Tensor

from laconic.comm.communicator import Communicator
from laconic.sharded.linear_map import apply_linear
from laconic.sharded.position import Position


def sum_over_ranks(communicator: Communicator, x: Tensor, position: Position) -> Tensor:
    """Returns the sum of every rank's x, the same on all; booked at `position`.

    Each rank's x reaches the losses of all ranks, so its gradient is the sum of theirs.
    """
    return apply_linear(communicator.all_reduce, communicator.all_reduce, x, communicator.ledger, position)

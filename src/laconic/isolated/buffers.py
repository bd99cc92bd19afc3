"""Running statistics of norms, which each rank gathers from its own rows: combined before they are evaluated with."""

from typing import Any

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator


def combine_buffers(model: nn.Module, num_rows: int, communicator: Communicator) -> None:
    """Gives every norm of `model` the statistics of all ranks, each weighted by its number of rows.

    The variance of all is that within the ranks and that between their means. All ranks call it together.
    """
    norms = [module for module in model.modules() if isinstance(getattr(module, "running_mean", None), Tensor)]
    if not norms or communicator.num_ranks == 1:
        return
    with communicator.ledger.phase("repartition"), torch.no_grad():
        means = _joined(norms, "running_mean")
        total = communicator.all_reduce(torch.cat([means * num_rows, means.new_tensor([num_rows])]))
        count, mean = total[-1], total[:-1] / total[-1]
        spread = _joined(norms, "running_var") + (means - mean).square()
        variance = communicator.all_reduce(spread * num_rows) / count
        _scatter(norms, "running_mean", mean)
        _scatter(norms, "running_var", variance)


def _joined(norms: list[Any], name: str) -> Tensor:
    return torch.cat([getattr(norm, name).flatten().double() for norm in norms])


def _scatter(norms: list[Any], name: str, values: Tensor) -> None:
    sizes = [getattr(norm, name).numel() for norm in norms]
    for norm, part in zip(norms, torch.split(values, sizes), strict=True):
        getattr(norm, name).copy_(part.view_as(getattr(norm, name)))

"""Running statistics of norms, which each rank gathers from its own rows: combined before they are evaluated with."""

from typing import Any

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator

# Shapes: K running means and as many variances, P ranks


def combine_buffers(model: nn.Module, num_rows: int, communicator: Communicator) -> Tensor:
    """Gives every norm of `model` the statistics of all ranks, each weighted by its number of rows.

    The variance of all is that within the ranks and that between their means. Of statistics that are equal already not
    a bit changes. All ranks call it together. Returns what each rank had before, (P, 2 K + 1).

    Traffic: an all_gather of 8 (2 K + 1) bytes; none without such norms, or on one rank.
    """
    norms = _norms(model)
    if not norms or communicator.num_ranks == 1:
        return torch.empty(0, 0, dtype=torch.float64)
    with torch.no_grad():
        own = [*(_joined(norms, name) for name in _STATISTICS), torch.tensor([num_rows], dtype=torch.float64)]
        parts = communicator.all_gather(torch.cat(own))
        # A rank without rows has statistics of nothing.
        seen = parts[parts[:, -1] > 0]
        share = seen[:, -1:] / seen[:, -1].sum()
        means, variances = seen[:, :-1].chunk(2, dim=1)
        # By what they differ from the first, so that equal ones stay as they are.
        mean = means[0] + (share * (means - means[0])).sum(0)
        variance = variances[0] + (share * (variances - variances[0] + (means - mean).square())).sum(0)
        _write(norms, torch.cat([mean, variance]))
    return parts


def give_back_buffers(model: nn.Module, parts: Tensor, rank: int) -> None:
    """Gives the norms of `model` what `combine_buffers` found on `rank`."""
    if len(parts):
        with torch.no_grad():
            _write(_norms(model), parts[rank, :-1])


_STATISTICS = ("running_mean", "running_var")


def _norms(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(getattr(module, "running_mean", None), Tensor)]


def _joined(norms: list[Any], name: str) -> Tensor:
    return torch.cat([getattr(norm, name).flatten().double() for norm in norms])


def _write(norms: list[Any], values: Tensor) -> None:
    buffers = [getattr(norm, name) for name in _STATISTICS for norm in norms]
    for buffer, part in zip(buffers, torch.split(values, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))

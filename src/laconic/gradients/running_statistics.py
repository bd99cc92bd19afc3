"""Running statistics of norms: gathered by each rank from its own rows, combined before evaluation.

With n_r rows, mean m_r and variance v_r of rank r, all (F,), and the share a_r = n_r / sum_q n_q:

    m = sum_r a_r m_r           v = sum_r a_r (v_r + (m_r - m)^2)

The second term of v is the variance between the means of the ranks.
"""

from typing import Any

import torch
from torch import Tensor, nn

from laconic.comm.communicator import Communicator

# Shapes: K running means and as many variances, C counters of steps, P ranks


def combine_buffers(model: nn.Module, num_rows: int, communicator: Communicator) -> Tensor:
    """Gives every norm of `model` the statistics of all ranks, each weighted by its number of rows.

    The variance of all is that within the ranks and that between their means. Of statistics that
    are equal already not a bit changes. A rank that took no step yet counts for nothing; counters
    of steps become the largest. All ranks call it together. Returns what each rank had before, (P,
    2 K + C + 1).

    Traffic: an all_gather of 8 (2 K + C + 1) bytes; none without such norms, or on one rank.
    """
    norms = _norms(model)
    if not norms or communicator.num_ranks == 1:
        return torch.empty(0, 0, dtype=torch.float64)
    with torch.no_grad():
        buffers = _buffers(norms)
        own = torch.cat([buffer.flatten().double() for buffer in buffers])
        parts = communicator.all_gather(torch.cat([own, torch.tensor([num_rows], dtype=torch.float64)]))
        num_statistics = 2 * sum(norm.running_mean.numel() for norm in norms)
        counters = parts[:, num_statistics:-1]
        # A rank without rows, or without steps where they are counted, has statistics of nothing.
        has_seen = parts[:, -1] > 0
        # Some norms have a counter and leave it alone (PyG's InstanceNorm).
        if bool((counters > 0).any()):
            has_seen &= counters.amax(1) > 0
        if not bool(has_seen.any()):
            return parts
        seen = parts[has_seen]
        share = seen[:, -1:] / seen[:, -1].sum()
        means, variances = seen[:, :num_statistics].chunk(2, dim=1)
        # By what they differ from the first, so that equal ones stay as they are.
        mean = means[0] + (share * (means - means[0])).sum(0)
        variance = variances[0] + (share * (variances - variances[0] + (means - mean).square())).sum(0)
        _write(buffers, torch.cat([mean, variance, counters.amax(0)]))
    return parts


def give_back_buffers(model: nn.Module, parts: Tensor, rank: int) -> None:
    """Gives the norms of `model` what `combine_buffers` found on `rank`."""
    if len(parts):
        with torch.no_grad():
            _write(_buffers(_norms(model)), parts[rank, :-1])


def _norms(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(getattr(module, "running_mean", None), Tensor)]


def _buffers(norms: list[Any]) -> list[Tensor]:
    """Returns all means, then all variances, then those counters of steps that norms keep."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    found = [getattr(norm, name, None) for name in names for norm in norms]
    return [buffer for buffer in found if buffer is not None]


def _write(buffers: list[Tensor], values: Tensor) -> None:
    for buffer, part in zip(buffers, torch.split(values, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))

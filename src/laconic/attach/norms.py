"""Norms whose statistics are over all nodes: where a rank holds some of the rows, the sums are over all ranks.

Each is PyG's or torch's own formula, with `total` in place of a sum over rows. Variances are of centred rows: the
difference of two large sums would lose digits. Norms within a row (LayerNorm by node, MessageNorm) need nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import norm as pyg

from laconic.attach.aggregator import Aggregator
from laconic.attach.forward import signature_of
from laconic.errors import UnsupportedModelError

# Shapes: N rows, F features

Formula = Callable[[Any, Aggregator, Tensor], Tensor]


def norm_forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
    """What stands for the `forward` of an attached norm."""
    scope = self.laconic_scope
    if scope.is_elsewhere:
        plain: Tensor = type(self).forward(self, *args, **kwargs)
        return plain
    given = signature_of(type(self).forward).bind(self, *args, **kwargs).arguments
    rows = given.get("x", given.get("input"))
    if given.get("batch") is not None:
        raise UnsupportedModelError(
            f"{type(self).__name__} was called with a batch vector, for several graphs in one. Over several ranks it "
            f"normalises one graph; leave batch out."
        )
    if not isinstance(rows, Tensor) or rows.dim() != 2 or scope.shard.hop_of(len(rows)) is None:
        raise UnsupportedModelError(
            f"{type(self).__name__} was called with something else than one row per node, whose statistics over all "
            f"ranks are not known. Normalise rows of nodes, or use a norm within a row, such as LayerNorm(mode='node')."
        )
    scope.enter_layer(self)
    return NORMS[type(self)](self, scope.aggregator, rows)


def is_over_nodes(module: nn.Module) -> bool:
    """Whether a module is a norm with statistics over nodes that we know the formula of."""
    if isinstance(module, pyg.LayerNorm) and module.mode == "node":
        return False
    return type(module) in NORMS


def _batch_norm(norm: nn.BatchNorm1d, aggregator: Aggregator, x: Tensor) -> Tensor:
    if not norm.training and norm.running_mean is not None:
        return nn.BatchNorm1d.forward(norm, x)
    return _standardise(norm, aggregator, x)


def _standardise(norm: Any, aggregator: Aggregator, x: Tensor) -> Tensor:
    count = _count(aggregator)
    mean = aggregator.total(aggregator.owned(x).sum(0)) / count
    centred = x - mean
    variance = aggregator.total(aggregator.owned(centred).square().sum(0)) / count
    if norm.training and norm.running_mean is not None:
        _update(norm, count, mean, variance)
    return _affine(centred * torch.rsqrt(variance + norm.eps), norm.weight, norm.bias)


def _update(norm: Any, count: int, mean: Tensor, variance: Tensor) -> None:
    """Moves the running statistics as torch does: by momentum, or as the mean over all steps where that is None."""
    with torch.no_grad():
        factor = norm.momentum
        # PyG's InstanceNorm has the counter too, and leaves it alone.
        if isinstance(norm, nn.BatchNorm1d) and norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
            if factor is None:
                factor = 1.0 / float(norm.num_batches_tracked)
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), factor)
        norm.running_var.lerp_((variance * count / max(count - 1, 1)).to(norm.running_var.dtype), factor)


def _instance_norm(norm: pyg.InstanceNorm, aggregator: Aggregator, x: Tensor) -> Tensor:
    if not norm.training and norm.track_running_stats:
        out: Tensor = pyg.InstanceNorm.forward(norm, x)
        return out
    return _standardise(norm, aggregator, x)


def _layer_norm(norm: pyg.LayerNorm, aggregator: Aggregator, x: Tensor) -> Tensor:
    count = _count(aggregator) * x.shape[1]
    centred = x - aggregator.total(aggregator.owned(x).sum()) / count
    deviation = (aggregator.total(aggregator.owned(centred).square().sum()) / count).sqrt()
    return _affine(centred / (deviation + norm.eps), norm.weight, norm.bias)


def _graph_norm(norm: pyg.GraphNorm, aggregator: Aggregator, x: Tensor) -> Tensor:
    count = _count(aggregator)
    out = x - aggregator.total(aggregator.owned(x).sum(0)) / count * norm.mean_scale
    variance = aggregator.total(aggregator.owned(out).square().sum(0)) / count
    return _affine(out / (variance + norm.eps).sqrt(), norm.weight, norm.bias)


def _pair_norm(norm: pyg.PairNorm, aggregator: Aggregator, x: Tensor) -> Tensor:
    count = _count(aggregator)
    x = x - aggregator.total(aggregator.owned(x).sum(0)) / count
    eps = float(norm.eps)
    if norm.scale_individually:
        spread = eps + torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    else:
        spread = (eps + aggregator.total(aggregator.owned(x).square().sum()) / count).sqrt()
    return torch.div(x * float(norm.scale), spread)


def _mean_subtraction(norm: pyg.MeanSubtractionNorm, aggregator: Aggregator, x: Tensor) -> Tensor:
    return x - aggregator.total(aggregator.owned(x).sum(0)) / _count(aggregator)


def _count(aggregator: Aggregator) -> int:
    """Returns the rows that sums are over; of none, which a rank that trains alone may have, the mean is 0."""
    return max(aggregator.num_nodes, 1)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


NORMS: Mapping[type[nn.Module], Formula] = {
    nn.BatchNorm1d: _batch_norm,
    pyg.InstanceNorm: _instance_norm,
    pyg.LayerNorm: _layer_norm,
    pyg.GraphNorm: _graph_norm,
    pyg.PairNorm: _pair_norm,
    pyg.MeanSubtractionNorm: _mean_subtraction,
}

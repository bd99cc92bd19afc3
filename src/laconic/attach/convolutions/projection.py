"""Aggregation and a Linear in the cheaper order: M (x W) = (M x) W, so the product runs on the narrower side."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn.dense import Linear as PygLinear

from laconic.attach.aggregator import Aggregator, Linear

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def aggregate_and_project(
    aggregator: Aggregator, aggregation: Linear, x: Tensor, linear: Any, bias: Tensor | None
) -> Tensor:
    """Returns linear(aggregation of x) + bias, in the order that costs least.

    Aggregated first when that is remembered from step to step (the graph's own features): then neither the forward nor
    the backward pass has a product left. Otherwise on whichever side of the Linear is narrower.
    """
    if not is_plain(linear):
        # A parametrised or hooked layer may be more than a matrix.
        projected: Tensor = linear(aggregator.linear(aggregation, x))
        return projected if bias is None else projected + bias
    assert bias is None or linear.bias is None, "two biases"
    offset = linear.bias if bias is None else bias
    width_out, width_in = linear.weight.shape
    if aggregator.is_remembered(x) or width_in <= width_out:
        return F.linear(aggregator.linear(aggregation, x), linear.weight, offset)
    out = aggregator.linear(aggregation, F.linear(x, linear.weight))
    return out if offset is None else out + offset


def add_projection(out: Tensor, x: Tensor, linear: Any) -> Tensor:
    """Returns out + linear(x) in one pass over `out`, for a Linear without bias."""
    if not is_plain(linear) or linear.bias is not None:
        added: Tensor = out + linear(x)
        return added
    return torch.addmm(out, x, linear.weight.t())


def is_plain(linear: Any) -> bool:
    """Whether a layer is nothing but a matrix and a bias."""
    return (
        type(linear) in (torch.nn.Linear, PygLinear)
        and "forward" not in linear.__dict__
        and not any(getattr(linear, hooks) for hooks in _HOOKS)
        and not torch.is_autocast_enabled("cpu")
    )

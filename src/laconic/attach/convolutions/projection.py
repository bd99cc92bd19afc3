"""Aggregation and a Linear in the cheaper order: M (x W) = (M x) W, so the product runs on the narrower side."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import MLP
from torch_geometric.nn.dense import Linear as PygLinear

from laconic.attach.aggregator import Aggregator, Linear

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def aggregate_and_project(
    aggregator: Aggregator, aggregation: Linear, x: Tensor, linear: Any, bias: Tensor | None, own: Any = None
) -> Tensor:
    """Returns linear(aggregation of x) + own(x) + bias, in the order that costs least.

    See `Aggregator.aggregates_first`.

    Args:
        linear: the layer that the aggregation goes through.
        bias: beside those of the layers.
        own: the layer that a row's own features go through, if any.
    """
    if not is_plain(linear):
        # A parametrised or hooked layer may be more than a matrix.
        projected: Tensor = linear(aggregator.linear(aggregation, x))
        projected = projected if bias is None else projected + bias
        return projected if own is None else add_projection(projected, x, own, in_place=False)
    assert bias is None or linear.bias is None, "two biases"
    offset = linear.bias if bias is None else bias
    is_simple = own is None or (is_plain(own) and own.bias is None)
    if is_simple:
        out = aggregator.projected(aggregation, x, linear.weight, offset, None if own is None else own.weight)
        if out is not None:
            return out
    if aggregator.aggregates_first(x, linear.weight.shape[0]):
        out = F.linear(aggregator.linear(aggregation, x), linear.weight, offset)
    else:
        out = aggregator.linear(aggregation, F.linear(x, linear.weight))
        out = out if offset is None else out + offset
    return out if own is None else add_projection(out, x, own, in_place=True)


def add_projection(out: Tensor, x: Tensor, linear: Any, *, in_place: bool) -> Tensor:
    """Returns out + linear(x), for a plain Linear without bias in one pass over `out`.

    Args:
        out, x: rows; x may have more of them behind those of `out`.
        linear: the layer.
        in_place: `out` is a fresh result of a plain Linear or of an aggregation, which no one else holds and no
            backward pass reads: it is added to where it lies.
    """
    # Rows that were only there to be summed up are not projected.
    x = x[: len(out)]
    if not is_plain(linear) or linear.bias is not None:
        added: Tensor = out + linear(x)
        return added
    return out.addmm_(x, linear.weight.t()) if in_place else torch.addmm(out, x, linear.weight.t())


def aggregate_into(aggregator: Aggregator, aggregation: Linear, x: Tensor, network: torch.nn.Module) -> Tensor:
    """Returns network(aggregation of x), in the cheaper order where the network begins with a plain Linear."""
    first = _first_linear(network)
    out: Tensor
    if first is None:
        out = network(aggregator.linear(aggregation, x))
        return out

    def aggregate_as_well(rows: Tensor) -> Tensor:
        # Once only: a network may use the same layer again further on.
        first.__dict__.pop("forward")
        return aggregate_and_project(aggregator, aggregation, rows, first, None)

    first.forward = aggregate_as_well
    try:
        out = network(x)
    finally:
        first.__dict__.pop("forward", None)
    return out


def _first_linear(network: torch.nn.Module) -> Any:
    """Returns the plain Linear that the network applies to its input before anything else, if it is known to."""
    first: Any = network
    while type(first) in (torch.nn.Sequential, MLP) and len(first._modules) and not _is_changed(first):
        first = first[0] if isinstance(first, torch.nn.Sequential) else first.lins[0]
    return first if is_plain(first) else None


def is_plain(linear: Any) -> bool:
    """Whether a layer is nothing but a matrix and a bias."""
    return (
        type(linear) in (torch.nn.Linear, PygLinear)
        and not _is_changed(linear)
        and not torch.is_autocast_enabled("cpu")
    )


def _is_changed(module: torch.nn.Module) -> bool:
    """Whether a module has hooks, or a forward of its own in place of its class's."""
    return "forward" in module.__dict__ or any(getattr(module, hooks) for hooks in _HOOKS)

"""One tensor per rank becomes one, in rank order: the result does not depend on who was first."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laconic.comm.transport.base import Reduction

_SHORT_FLOATS = (torch.bfloat16, torch.float16)
_OPERATIONS: dict[Reduction, Callable[..., Tensor]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


def combine(parts: Sequence[Tensor], op: Reduction) -> Tensor:
    """Returns the sum, maximum or minimum of tensors of one shape, as a new tensor.

    Short floats are summed in float32 and rounded once; the sum of booleans is whether any is true.
    """
    if op == "sum" and parts[0].dtype in _SHORT_FLOATS:
        return _wide_sum(parts).to(parts[0].dtype)
    total = parts[0].clone()
    for part in parts[1:]:
        _OPERATIONS[op](total, part, out=total)
    return total


def combine_into(out: Tensor, parts: Sequence[Tensor], op: Reduction) -> None:
    """Fills `out` with what `combine` returns, without a copy: the parts are used up. `out` may be one of them."""
    if len(parts) == 1 or (op == "sum" and out.dtype in _SHORT_FLOATS):
        out.copy_(combine(parts, op))
        return
    total = parts[0]
    for part in parts[1:-1]:
        # What `out` holds as a part is needed until its turn has come.
        target = part if total is out else total
        total = _OPERATIONS[op](total, part, out=target)
    _OPERATIONS[op](total, parts[-1], out=out)


def _wide_sum(parts: Sequence[Tensor]) -> Tensor:
    wide = parts[0].float()
    for part in parts[1:]:
        wide += part
    return wide

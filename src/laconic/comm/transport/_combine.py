"""One tensor per rank becomes one, in rank order: the result does not depend on who was first."""

from collections.abc import Sequence

import torch
from torch import Tensor

from laconic.comm.transport.base import Reduction

_SHORT_FLOATS = (torch.bfloat16, torch.float16)


def combine(parts: Sequence[Tensor], op: Reduction) -> Tensor:
    """Returns the sum, maximum or minimum of tensors of one shape, as a new tensor.

    Short floats are summed in float32 and rounded once; the sum of booleans is whether any is true.
    """
    total = parts[0].clone()
    if op == "sum" and total.dtype in _SHORT_FLOATS:
        wide = total.float()
        for part in parts[1:]:
            wide += part
        return wide.to(total.dtype)
    for part in parts[1:]:
        if op == "sum":
            total += part
        elif op == "max":
            torch.maximum(total, part, out=total)
        else:
            torch.minimum(total, part, out=total)
    return total

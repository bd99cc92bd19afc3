"""The loss: the sum over the rows at hand, divided by the global number of rows.

Gradients of parts of any size then add up to the gradient of the whole (the mean of means would not).
"""

import torch.nn.functional as F
from torch import Tensor

# Shapes: R rows, C classes or labels


def objective(logits_RC: Tensor, y: Tensor, num_rows: int, factors: Tensor | None = None) -> Tensor:
    """Returns the loss of some rows as their share of a mean over `num_rows` rows.

    Args:
        logits_RC: the model's outputs for these rows.
        y: their class numbers (R,): cross-entropy; or their 0/1 labels (R, C): binary cross-entropy, mean over labels.
        num_rows: how many rows the loss is over, on all ranks together.
        factors: what each row's loss is multiplied by instead, (R,).
    """
    if factors is not None:
        return (_losses(logits_RC, y) * factors.to(logits_RC.dtype)).sum()
    if y.dim() == 1:
        return F.cross_entropy(logits_RC, y, reduction="sum") / num_rows
    targets = y.to(logits_RC.dtype)
    return F.binary_cross_entropy_with_logits(logits_RC, targets, reduction="sum") / (num_rows * y.shape[1])


def _losses(logits_RC: Tensor, y: Tensor) -> Tensor:
    if y.dim() == 1:
        return F.cross_entropy(logits_RC, y, reduction="none")
    return F.binary_cross_entropy_with_logits(logits_RC, y.to(logits_RC.dtype), reduction="none").mean(1)

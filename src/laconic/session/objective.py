"""The loss: torch's mean over the training rows of all ranks, from what each rank has of it.

With l_v the loss of row v, and w_v what it weighs in torch's mean (1 as a rule; its class's weight,
or 0 for a label that is ignored; one for each of its labels), a rank's part is

    S_k = sum_v l_v        W_k = sum_v w_v        and the loss is  sum_k S_k / sum_k W_k

Where a strategy gives each row a share f_v of the mean over R rows, l_v is multiplied by R f_v,
which is 1 for equal shares. What rows weigh stays as torch has it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laconic.errors import ConfigError
from laconic.graph import Shard
from laconic.session.loss_function import LossFunction

# Shapes: R rows, C classes or labels

_IGNORED = -100
_NO_DENOMINATOR = (
    "so that what it was divided by is not known, and ranks cannot put their parts together. Give the loss itself, as "
    "session.loss(F.cross_entropy, out, shard); settings as functools.partial(F.cross_entropy, weight=w) or "
    "nn.CrossEntropyLoss(weight=w); for a loss of your own, return one number per node (reduction='none'), of which "
    "the mean is taken. Add penalties on weights to what session.loss returns"
)


@final
@dataclass(frozen=True)
class LossPart:
    """A rank's part of a loss: `worker.share_loss(part.total, part.weight)` is the whole.

    Args:
        total: sum of the losses of its rows.
        weight: what its rows weigh in the mean; None: the loss is the sum over all rows.
    """

    total: Tensor
    weight: float | None


def loss_part(function: Callable[..., Any], out: Tensor, y: Tensor, factors: Tensor | None = None) -> LossPart:
    """Returns this rank's part of the loss over the rows of all ranks.

    A loss with reduction='none', or of one's own that returns one number per node (or several), is
    a mean over all of these numbers. Where there are weights or a setting, a loss with a
    `reduction` is called twice more without gradients, on made-up outputs, to learn what torch's
    mean divides by.

    Args:
        function: a loss of torch that takes (out, y), a partial of one, a module, or one's own.
        out: the model's outputs for these rows.
        y: their labels.
        factors: what the loss of each row is multiplied by, (R,); None: 1.
    """
    loss = LossFunction.of(function)
    loss, out, y = loss.fit(out, y)
    is_sum = loss.reduction == "sum"
    if loss.reduction is not None:
        loss.check_constant()
    if not len(out):
        if loss.reduction is None:
            # So that what others refuse is refused here too.
            _losses(loss, _made_up(out.new_empty(1, *out.shape[1:])), y.new_zeros(1, *y.shape[1:]), factors)
        return LossPart(out.sum() * 0, None if is_sum else 0.0)
    if loss.reduction in (None, "none"):
        losses = _losses(loss, out, y, factors)
        return LossPart(_sum(losses, factors), float(losses.numel()))
    total = _total(loss, out, y, "sum") if factors is None else _sum(_losses(loss, out, y, factors), factors)
    return LossPart(total, None if is_sum else _weight(loss, out, y))


def session_loss(function: Callable[..., Any], out: object, shard: Shard, factors: Tensor | None) -> LossPart:
    """Returns `loss_part` of the training rows of a shard.

    Raises ConfigError if `out` is not one tensor with a row for each label of the shard.
    """
    if not isinstance(out, Tensor):
        raise ConfigError(
            f"session.loss takes the outputs of the model as one tensor, got a {type(out).__name__}. Give the tensor "
            f"that the loss is of, such as out[0]."
        )
    rows = shard.train_rows
    if out.shape[:1] != shard.y.shape[:1]:
        picked = " It picks the training rows itself: leave train_mask out." if out.shape[:1] == rows.shape else ""
        raise ConfigError(
            f"session.loss takes the model's outputs for all {len(shard.y)} owned rows of the shard, got shape "
            f"{tuple(out.shape)}.{picked}"
        )
    return loss_part(function, out[rows], shard.y[rows], factors)


def usual_loss(y: Tensor) -> Callable[..., Tensor]:
    """Returns the loss that labels suggest.

    For class numbers (R,) it is cross-entropy, for 0/1 labels (R, C) binary cross-entropy.
    """
    return F.cross_entropy if y.dim() == 1 else F.binary_cross_entropy_with_logits


def nothing(model: nn.Module) -> Tensor:
    """Returns the total of a rank that has no rows in a step in which others have some: 0, with gradients."""
    return torch.stack([parameter.sum() * 0 for parameter in model.parameters()]).sum()


def _losses(loss: LossFunction, out: Tensor, y: Tensor, factors: Tensor | None) -> Tensor:
    """Returns one number, or several, for each row."""
    losses = loss.ask(out, y, None if loss.reduction is None else "none")
    if isinstance(losses, Tensor) and losses.shape[:1] == out.shape[:1]:
        return losses
    if factors is not None:
        raise ConfigError(
            f"This strategy weighs the loss of each training node, and so needs one number for each of {len(out)} "
            f"nodes from {loss.name} with reduction='none'; it gave {_found(losses)}. Use such a loss, or "
            f"correction=none."
        )
    if isinstance(losses, Tensor) and losses.dim() == 0:
        raise ConfigError(f"{loss.name} returns one number for all nodes together, {_NO_DENOMINATOR}.")
    raise ConfigError(f"{loss.name} should return one number for each of {len(out)} nodes, but gave {_found(losses)}.")


def _sum(losses: Tensor, factors: Tensor | None) -> Tensor:
    if factors is None:
        return losses.sum()
    return (losses.flatten(1).sum(1) if losses.dim() > 1 else losses).mul(factors.to(losses.dtype)).sum()


def _total(loss: LossFunction, out: Tensor, y: Tensor, reduction: str) -> Tensor:
    total = loss.ask(out, y, reduction)
    if isinstance(total, Tensor) and total.dim() == 0:
        return total
    raise ConfigError(f"{loss.name} should return one number with reduction={reduction!r}, but gave {_found(total)}.")


def _weight(loss: LossFunction, out: Tensor, y: Tensor) -> float:
    """Returns what the sum of the losses is divided by to be their mean: W_k.

    Of the usual losses without settings it is counted. Others are asked for sum and mean of outputs
    that are nobody's: W does not depend on outputs, and of the real ones both may be 0.
    """
    if loss.function is F.binary_cross_entropy_with_logits:
        return float(out.numel())
    if loss.function is F.cross_entropy and y.dim() == 1:
        return float((y != _IGNORED).sum())
    assert loss.reduction is not None
    with torch.no_grad():
        weight = _quotient(loss, _made_up(out), y)
        if weight is None:
            # Nothing but zeros, whatever the outputs are.
            return float(len(out))
        if not loss.is_torchs:
            _check_mean(loss, out, y, weight)
    return weight


def _quotient(loss: LossFunction, out: Tensor, y: Tensor) -> float | None:
    total = float(_total(loss, out, y, "sum"))
    mean = float(_total(loss, out, y, str(loss.reduction)))
    if total == 0.0:
        # The mean of no rows is 0 / 0.
        return None if mean == 0.0 else 0.0
    return total / mean


def _check_mean(loss: LossFunction, out: Tensor, y: Tensor, weight: float) -> None:
    """Raises ConfigError if the mean of a user's own loss is not its sum over its weight."""
    total, mean = float(_total(loss, out, y, "sum")), float(_total(loss, out, y, str(loss.reduction)))
    if total == mean:
        # Rows that weigh 1 together; or a function that does not care.
        _losses(loss, out, y, None)
    if abs(total - mean * weight) > 1e-3 * abs(total):
        raise ConfigError(
            f"{loss.name} with reduction={loss.reduction!r} divides its sum by something that depends on the outputs, "
            f"{_NO_DENOMINATOR}."
        )


def _found(result: Any) -> str:
    return f"a tensor of shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"a {type(result).__name__}"


def _made_up(out: Tensor) -> Tensor:
    """Returns outputs of the same shape, all of them probabilities, and all different."""
    return torch.linspace(0.3141, 0.7182, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)

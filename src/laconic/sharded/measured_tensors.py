"""What a run has measured, as tensors for a checkpoint and back."""

from collections.abc import Mapping

import torch
from torch import Tensor

from laconic.comm.schedules import Line, Measured
from laconic.comm.schedules.base import LineMeasure

# Shapes: K epochs, L lines
_ABSENT = float("nan")


def to_tensors(measured: tuple[Measured, ...]) -> dict[str, Tensor]:
    """Returns each epoch's numbers, (K, 4), the lines, (L, 3), and each epoch's numbers of each line, (K, L, 3)."""
    if not measured:
        return {}
    lines = sorted({line for one in measured for line in one.lines})
    absent = LineMeasure(_ABSENT, _ABSENT, _ABSENT)
    totals = [[one.loss, one.gradient_norm, one.gradient_change, one.num_bytes] for one in measured]
    of_lines = [[one.lines.get(line, absent) for line in lines] for one in measured]
    return {
        "measured.totals": torch.tensor(totals, dtype=torch.float64),
        "measured.lines": torch.tensor(lines, dtype=torch.int64).view(-1, 3),
        "measured.of_lines": torch.tensor(of_lines, dtype=torch.float64).view(len(measured), -1, 3),
    }


def from_tensors(tensors: Mapping[str, Tensor], *, with_lines: bool) -> tuple[Measured, ...]:
    """Returns what `to_tensors` was given.

    Args:
        with_lines: whether they are lines of this run; otherwise only what is known of whole epochs.
    """
    if "measured.totals" not in tensors:
        return ()
    lines = [Line(*line) for line in tensors["measured.lines"].tolist()]
    found = []
    rows = zip(tensors["measured.totals"].tolist(), tensors["measured.of_lines"].tolist(), strict=True)
    for (loss, gradient_norm, gradient_change, num_bytes), values in rows:
        known = {line: LineMeasure(*one) for line, one in zip(lines, values, strict=True) if one[0] == one[0]}
        lines_here = known if with_lines else {}
        found.append(Measured(loss, gradient_norm, gradient_change, int(num_bytes), lines_here))
    return tuple(found)

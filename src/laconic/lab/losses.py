"""Links that fail on purpose while a command runs: "2@30s" is host 2, 30 seconds after the start."""

import math
import re
from dataclasses import dataclass
from typing import final

from laconic.errors import ConfigError

_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


@final
@dataclass(frozen=True, slots=True)
class LinkLoss:
    """A host that loses its link, as if its cable were pulled out of the switch; until the end of the run."""

    host: int
    """Number of the host; the first is 0."""
    after_seconds: float
    """When, counted from the start of the command."""


def parse_loss(text: str) -> LinkLoss:
    """Returns the loss that "HOST@TIME" describes."""
    match = re.fullmatch(r"(\d+)@(.+)", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not HOST@TIME. Example: 2@30s, for host 2 after 30 seconds.")
    return LinkLoss(host=int(match[1]), after_seconds=parse_seconds(match[2]))


def parse_seconds(text: str) -> float:
    """Returns the seconds of a time such as "30s", "500ms", "2min" or "1h"; a bare number is seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h|)", text.strip())
    if match is None or not math.isfinite(float(match[1])):
        raise ConfigError(f"{text!r} is not a time. Examples: 30s, 500ms, 2min, 1h.")
    return float(match[1]) * _SECONDS[match[2]]

"""The rate of a link, as `tc` writes it: "1gbit", "100mbit", "2.5gbit", or "none" for a link that is not limited."""

import re

from laconic.errors import ConfigError

_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# Below this, one full packet alone would take longer than the queue of a link may hold it.
_LOWEST = 64_000


def parse_link(text: str) -> int | None:
    """Returns the bits per second of a link rate; None for "none"."""
    written = text.strip().lower()
    if written == "none":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)", written)
    if match is None:
        raise ConfigError(f"{text!r} is not a link rate. {_hint(written)}Examples: 1gbit, 100mbit, 2.5gbit, none.")
    bits = round(float(match[1]) * _BITS[match[2]])
    if bits < _LOWEST:
        raise ConfigError(f"A link of {text} is too slow to emulate: 64kbit or more. Examples: 10mbit, 1gbit, none.")
    return bits


def _hint(written: str) -> str:
    # What tc makes of mbps, and what people mean by it, differ by a factor of 8.
    return "tc reads mbps as megabytes per second: write mbit. " if written.endswith("bps") else ""

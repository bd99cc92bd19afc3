"""The codec inside a codec: error_feedback(codec=quantize(bits=4))."""

from functools import cache

from laconic.comm.codecs.base import Codec
from laconic.errors import ConfigError


@cache
def parse_inner(text: str, *, family: str, may_remember: bool = False) -> Codec:
    """Returns the codec that `text` names, for use inside the wrapper `family`.

    Args:
        may_remember: whether it may have a memory of its own; otherwise such a one is refused.
    """
    # The table holds the wrappers too, so it cannot be loaded before them.
    from laconic.comm.codecs import parse_codec

    inner = parse_codec(text)
    if inner.has_memory and not may_remember:
        raise ConfigError(
            f"codec {family}: {text} has a memory of its own, and the two would not agree on what the receiver has. "
            f"Put a codec without one inside, such as quantize(bits=4) or topk."
        )
    return inner

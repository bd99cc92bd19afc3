"""How rows are written for the way: one file per codec, one line each in CODECS. Specs nest.

codec = parse_codec("error_feedback(codec=quantize(bits=4))")
"""

from collections.abc import Mapping

from laconic.comm.codecs.base import Codec, Memory, MessageKey
from laconic.comm.codecs.boundary_sample import BoundarySample
from laconic.comm.codecs.cache import Cache
from laconic.comm.codecs.cast import Cast
from laconic.comm.codecs.error_feedback import ErrorFeedback
from laconic.comm.codecs.identity import Identity
from laconic.comm.codecs.low_rank import LowRank
from laconic.comm.codecs.prefix import Prefix
from laconic.comm.codecs.quantize import Quantize
from laconic.comm.codecs.relu_bitmap import ReluBitmap
from laconic.comm.codecs.stale import Stale
from laconic.comm.codecs.subset import Subset
from laconic.comm.codecs.topk import Topk
from laconic.specs import parse_spec

CODECS: Mapping[str, type[Codec]] = {
    "identity": Identity,
    "cast": Cast,
    "subset": Subset,
    "prefix": Prefix,
    "topk": Topk,
    "quantize": Quantize,
    "boundary_sample": BoundarySample,
    "low_rank": LowRank,
    "relu_bitmap": ReluBitmap,
    "error_feedback": ErrorFeedback,
    "cache": Cache,
    "stale": Stale,
}


def parse_codec(text: str) -> Codec:
    """Returns the codec that a text such as "quantize(bits=4)" names."""
    return parse_spec(text, CODECS, family="codec")


def is_coded(codec: str, num_ranks: int) -> bool:
    """Whether a codec, given by its spec, changes any message between so many ranks."""
    return num_ranks > 1 and not isinstance(parse_codec(codec), Identity)


__all__ = ["CODECS", "Codec", "Memory", "MessageKey", "is_coded", "parse_codec"]

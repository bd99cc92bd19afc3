"""How gradients become their mean over ranks: one file per way, and the table of their names.

reduction = parse_reduction("powersgd(rank=4)")
"""

from collections.abc import Mapping

from laconic.gradients.reductions.base import GradientReduction, Reducer
from laconic.gradients.reductions.bf16 import Bf16
from laconic.gradients.reductions.exact import Exact
from laconic.gradients.reductions.powersgd import PowerSgd
from laconic.specs import parse_spec

GRADIENT_REDUCTIONS: Mapping[str, type[GradientReduction]] = {
    "exact": Exact,
    "bf16": Bf16,
    "powersgd": PowerSgd,
}


def parse_reduction(text: str) -> GradientReduction:
    """Returns the reduction that a text such as "bf16" names."""
    return parse_spec(text, GRADIENT_REDUCTIONS, family="gradient reduction")


__all__ = ["GRADIENT_REDUCTIONS", "Bf16", "Exact", "GradientReduction", "PowerSgd", "Reducer", "parse_reduction"]

"""How ranks learn one model together: one file per strategy, one line each in STRATEGIES.

strategy = parse_strategy("single")
"""

from collections.abc import Mapping

from laconic.specs import parse_spec
from laconic.strategies.base import Strategy
from laconic.strategies.compressed_halo import CompressedHalo
from laconic.strategies.full_graph import FullGraph
from laconic.strategies.gradient_only import GradientOnly
from laconic.strategies.single import Single

STRATEGIES: Mapping[str, type[Strategy]] = {
    "single": Single,
    "compressed_halo": CompressedHalo,
    "gradient_only": GradientOnly,
    "full_graph": FullGraph,
}


def parse_strategy(text: str) -> Strategy:
    """Returns the strategy that a text such as "single" names."""
    return parse_spec(text, STRATEGIES, family="strategy")


def strategy_for(text: str, num_ranks: int) -> str:
    """Returns the strategy itself, or what auto stands for: single on one rank, compressed_halo, exact, on several."""
    if text != "auto":
        return text
    return "single" if num_ranks == 1 else "compressed_halo"


__all__ = ["STRATEGIES", "Strategy", "parse_strategy", "strategy_for"]

"""How ranks learn one model together: one file per strategy, one line each in STRATEGIES.

strategy = parse_strategy("single")
"""

from collections.abc import Mapping

from laconic.specs import LazyTable, parse_spec
from laconic.strategies.base import Strategy

# A run uses one of them, and the modules below the others are a third of ours.
STRATEGIES: Mapping[str, type[Strategy]] = LazyTable(
    {
        "single": "laconic.strategies.single:Single",
        "compressed_halo": "laconic.strategies.compressed_halo:CompressedHalo",
        "gradient_only": "laconic.strategies.gradient_only:GradientOnly",
        "full_graph": "laconic.strategies.full_graph:FullGraph",
    }
)


def parse_strategy(text: str) -> Strategy:
    """Returns the strategy that a text such as "single" names."""
    return parse_spec(text, STRATEGIES, family="strategy")


def strategy_for(text: str, num_ranks: int) -> str:
    """Returns the strategy itself, or what auto stands for: single on one rank, compressed_halo, exact, on several."""
    if text != "auto":
        return text
    return "single" if num_ranks == 1 else "compressed_halo"


__all__ = ["STRATEGIES", "Strategy", "parse_strategy", "strategy_for"]

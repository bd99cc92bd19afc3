"""How ranks learn one model together: one file per strategy, one line each in STRATEGIES.

strategy = parse_strategy("single")
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from laconic.specs import LazyTable, parse_spec
from laconic.strategies._old_spellings import refuse_old_spelling, resumed_spec

if TYPE_CHECKING:
    from laconic.strategies.base import Strategy

# A run uses one of them, and the modules below the others are a third of ours. The names alone need no torch.
STRATEGIES: "Mapping[str, type[Strategy]]" = LazyTable(
    {
        "single": "laconic.strategies.single:Single",
        "exchange": "laconic.strategies.exchange:Exchange",
        "gradient_only": "laconic.strategies.gradient_only:GradientOnly",
        "full_graph": "laconic.strategies.full_graph:FullGraph",
        "grappa": "laconic.strategies.grappa:Grappa",
    }
)

# Earlier names, with the present ones. Specs, settings files and run folders that have an earlier name are read; what
# is written and shown has the present one.
ALIASES: Mapping[str, str] = {"compressed_halo": "exchange"}


def present_spec(text: str) -> str:
    """Returns a spec under its strategy's present name: "compressed_halo(codec=cast)" is "exchange(codec=cast)"."""
    name, bracket, settings = text.partition("(")
    return f"{ALIASES.get(name.strip(), name)}{bracket}{settings}"


def parse_strategy(text: str) -> "Strategy":
    """Returns the strategy that a text such as "single" names."""
    refuse_old_spelling(text)
    return parse_spec(present_spec(text), STRATEGIES, family="strategy")


def strategy_for(text: str, num_ranks: int) -> str:
    """Returns the spec of the strategy. "auto" is single on one rank and exchange, which is exact too, on several."""
    if text != "auto":
        return present_spec(text)
    return "single" if num_ranks == 1 else "exchange"


__all__ = ["ALIASES", "STRATEGIES", "parse_strategy", "present_spec", "resumed_spec", "strategy_for"]

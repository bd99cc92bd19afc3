"""Settings of `gradient_only` that do not go together."""

from typing import TYPE_CHECKING

from laconic.errors import ConfigError
from laconic.specs import unknown_name

if TYPE_CHECKING:
    from laconic.strategies.gradient_only import GradientOnly


def check_settings(strategy: "GradientOnly") -> None:
    """Raises ConfigError for settings that do not go together, each with what would."""
    if strategy.repartition_every < 1:
        raise ConfigError(f"repartition_every should be 1 or more epochs; got {strategy.repartition_every}.")
    if strategy.rechunk_every < 0:
        raise ConfigError(f"rechunk_every should be 0 (never) or more sweeps; got {strategy.rechunk_every}.")
    choices_of = {
        "keep": ("auto", "rows", "sums"),
        "normalise": ("auto", "held", "whole"),
        "supply": ("auto", "storage", "peers"),
    }
    for name, choices in choices_of.items():
        if getattr(strategy, name) not in choices:
            raise ConfigError(unknown_name(str(getattr(strategy, name)), choices, family=name))
    if strategy.remember and (strategy.variable or strategy.correction != "none"):
        raise ConfigError(
            "With remembered neighbours none are missing: there is nothing to correct, and variable chunks are not "
            "needed. Leave variable and correction out, or set remember=False."
        )
    if not strategy.remember and strategy.keep != "auto":
        raise ConfigError(
            f"keep={strategy.keep} is for remembered neighbours, and remember is False. Leave one of them out."
        )
    for name, least in (("turns", "1 (no turns)"), ("reach", "1 hop")):
        value = getattr(strategy, name)
        if value is None:
            continue
        if not strategy.remember or strategy.keep == "rows":
            raise ConfigError(
                f"{name}={value} is for neighbours' rows that are computed here, which they are with keep=sums only. "
                f"Leave it out."
            )
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name} should be {least} or more, or be left out; got {value}.")
    if not strategy.remember and strategy.codec != type(strategy).codec:
        raise ConfigError(
            f"codec={strategy.codec} is for remembered neighbours, and remember is False. Leave one of them out."
        )
    if strategy.gradual not in (None, True, False):
        raise ConfigError(f"gradual should be True or False, or be left out; got {strategy.gradual}.")
    if strategy.sync_every < 1:
        raise ConfigError(f"sync_every should be 1 or more steps; got {strategy.sync_every}.")
    if strategy.sync_every > 1 and strategy.gradients != "exact":
        raise ConfigError(
            f"With sync_every={strategy.sync_every} parameters travel, not gradients: gradients={strategy.gradients} "
            f"has no effect. Leave one of them out."
        )
    if strategy.sync_every > 1 and strategy.correction in ("node", "batch"):
        raise ConfigError(
            f"With sync_every={strategy.sync_every} ranks count by their training nodes, and "
            f"correction={strategy.correction} weighs them by coverage. Set sync_every=1, or use correction=sweep."
        )
    if not 0.0 <= strategy.remote <= 1.0:
        raise ConfigError(f"remote should be a share from 0 to 1; got {strategy.remote}.")
    if strategy.remote < 1.0 and not strategy.remember:
        raise ConfigError("remote draws from remembered neighbours, and remember is False. Leave one of them out.")
    by_coverage = strategy.correction in ("node", "batch")
    if by_coverage and strategy.normalise == "whole":
        raise ConfigError(
            f"correction={strategy.correction} and normalise=whole correct the same thing twice, which is wrong for "
            f"every node by another factor. Leave normalise out, or use correction=none."
        )
    if strategy.correction == "sweep" and strategy.normalise == "held":
        raise ConfigError(
            "correction=sweep weighs edges by how often they are held, which is exact only over the degrees of the "
            "whole graph. Leave normalise out."
        )
    if strategy.schedule == "fixed" and (strategy.correction == "sweep" or strategy.rechunk_every):
        raise ConfigError(
            "With schedule=fixed chunks never change: correction=sweep and rechunk_every need ones that do. Use "
            "schedule=cyclic, or leave them out."
        )
    if strategy.rechunk_every and strategy.variable < 2:
        raise ConfigError(
            f"rechunk_every brings other chunks of other ranks together, and with variable={strategy.variable} there "
            f"are never two of them. Set variable=2 or more."
        )
    if strategy.sync_every > 1 and strategy.combination != "self_normalised":
        raise ConfigError(
            f"With sync_every={strategy.sync_every} ranks count by their training nodes, which is "
            f"combination=self_normalised; got {strategy.combination}."
        )
    if strategy.correction == "sweep" and not strategy.variable:
        raise ConfigError("correction=sweep needs variable chunks that change. Set variable=1 or more.")
    if strategy.shrinkage is not None and not by_coverage:
        raise ConfigError(
            f"shrinkage draws coverage weights towards 1, and correction={strategy.correction} has none. Use "
            f"correction=node or batch, or leave shrinkage out."
        )

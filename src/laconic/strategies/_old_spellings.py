"""Strategies as they were written before `gradient_only` was split: what to write now.

gradient_only(repartition_every=5)                                 gradient_only(refresh_every=5)
gradient_only(remember=False, variable=1, repartition_every=5)     grappa(variable=1, repartition_every=5)
gradient_only(remember=False, normalise=whole)                     grappa(correction=degree)
gradient_only(sync_every=4)                                        gradient_only: it is gone
"""

from typing import Any

from laconic.errors import ConfigError
from laconic.specs import split_spec

# Settings of gradient_only that are those of grappa now.
_OF_GRAPPA = ("variable", "chunks", "schedule", "rechunk_every", "correction", "hops", "shrinkage", "combination")
_OLD = frozenset({"repartition_every", "remember", "sync_every", "normalise", "supply", *_OF_GRAPPA})
# Of them, those that changed what was computed with remembered neighbours too.
_CHANGED_MORE = ("chunks", "combination")


def refuse_old_spelling(text: str) -> None:
    """Raises ConfigError, with what to write instead, for settings that are no longer those of gradient_only."""
    now, lost = _spelled_now(text)
    if now == text:
        return
    named = [name for name in split_spec(text, family="strategy")[1] if name in _OLD]
    raise ConfigError(
        f"{', '.join(named)} {'are no settings' if len(named) > 1 else 'is no setting'} of gradient_only any more: "
        f"historical neighbours have refresh_every, and training without neighbours, with chunks and corrections, is "
        f"the strategy grappa. {_why_gone(lost)}Write {now}."
    )


def resumed_spec(text: str) -> str:
    """Returns the strategy of an earlier run in present words; raises ConfigError where it cannot be continued."""
    now, lost = _spelled_now(text)
    if lost:
        raise ConfigError(
            f"This run was trained with {text}, which cannot be continued. {_why_gone(lost)}Start a new run with "
            f"{now}; `laconic predict` still takes this one."
        )
    return now


def _why_gone(lost: list[str]) -> str:
    if "sync_every" in lost:
        return (
            "Ranks no longer take steps apart: neither traffic nor a resumed run could be foretold. Gradients are "
            "shared in every step, and in fewer bytes with gradients=bf16 or powersgd(rank=2). "
        )
    if "chunks" in lost:
        return "For more chunks than ranks, write a store: `laconic partition ... --parts N`. "
    return f"Historical neighbours do without {', '.join(lost)}. " if lost else ""


def _spelled_now(text: str) -> tuple[str, list[str]]:
    """Returns the strategy in present words, and the settings that did something and have no present word."""
    name, arguments = split_spec(text, family="strategy")
    if name != "gradient_only" or not _OLD.intersection(arguments):
        return text, []
    lost = ["sync_every"] if arguments.pop("sync_every", 1) != 1 else []
    normalise = arguments.pop("normalise", "auto")
    if arguments.pop("remember", True) and not {"variable", "correction"}.intersection(arguments):
        lost += [key for key in _CHANGED_MORE if key in arguments and arguments[key] != "self_normalised"]
        kept = {
            "refresh_every" if key == "repartition_every" else key: value
            for key, value in arguments.items()
            if key not in (*_OF_GRAPPA, "supply")
        }
        return _written("gradient_only", kept), lost
    if normalise == "whole" and arguments.get("correction", "none") == "none":
        arguments["correction"] = "degree"
    known = (*_OF_GRAPPA, "repartition_every", "supply", "partitioner", "gradients")
    return _written("grappa", {key: value for key, value in arguments.items() if key in known}), lost


def _written(name: str, arguments: dict[str, Any]) -> str:
    given = ", ".join(f"{key}={_value(value)}" for key, value in arguments.items())
    return f"{name}({given})" if given else name


def _value(value: Any) -> str:
    if isinstance(value, str):
        try:
            split_spec(value, family="setting")
        except ConfigError:
            return repr(value)
        return value
    return repr(value)

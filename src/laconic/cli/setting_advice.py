"""What to write where somebody gave a setting as if it were an option: `--lr 0.1` is `-s training.lr=0.1`."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from laconic.cli.status import working


def advise_setting(option: str, arguments: Sequence[str]) -> str | None:
    """Returns a sentence with what to write instead of an unknown option of `train`; None if no setting has its name.

    Args:
        option: such as "--lr".
        arguments: the whole command line, in which the value stands.
    """
    name = option.lstrip("-").replace("-", "_")
    with working("Looking for a setting of that name"):
        from laconic.models import MODELS
        from laconic.strategies import STRATEGIES
        from laconic.trainer.config import DataConfig, RunConfig, TrainingConfig

        sections: dict[str, Iterable[type[Any]]] = {
            "training": [TrainingConfig],
            "model": MODELS.values(),
            "data": [DataConfig],
            "run": [RunConfig],
        }
        for section, kinds in sections.items():
            if any(name == field.name for kind in kinds for field in dataclasses.fields(kind)):
                return f"It is a setting: -s {section}.{name}={_value(option, arguments)}"
        for strategy, kind in STRATEGIES.items():
            if any(name == field.name and field.init for field in dataclasses.fields(kind)):  # type: ignore[arg-type]
                value = _value(option, arguments)
                return f'It is a setting of the strategy: --strategy "{strategy}({name}={value})"'
    return None


def _value(option: str, arguments: Sequence[str]) -> str:
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return argument.removeprefix(f"{option}=")
        if argument == option and place + 1 < len(arguments) and not arguments[place + 1].startswith("--"):
            return arguments[place + 1]
    return "VALUE"

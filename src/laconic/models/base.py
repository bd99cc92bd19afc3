"""What a sample model is: a few settings and a `build` that hands them to PyG's ready-made class.

A member is a frozen dataclass, so `gat(hidden=128, heads=8)` is at once its configuration and its builder. Nothing here
knows of training or of ranks: what `build` returns is a plain PyG model, and its state_dict has PyG's own keys.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from laconic.errors import ConfigError

_NORMS: dict[str, dict[str, Any]] = {
    "none": {},
    "batch": {"norm": "BatchNorm"},
    # PyG's LayerNorm shares one mean over the whole graph unless it is told otherwise; a row's own is local to it.
    "layer": {"norm": "LayerNorm", "norm_kwargs": {"mode": "node"}},
}
_JUMPS = ("none", "last", "cat", "max", "lstm")


@dataclass(frozen=True, slots=True)
class ModelSpec(ABC):
    """The settings of a sample model."""

    @abstractmethod
    def build(self, num_features: int, num_classes: int) -> nn.Module:
        """Returns a fresh model that maps (N, num_features) to (N, num_classes) logits."""

    @property
    @abstractmethod
    def num_hops(self) -> int | None:
        """From how many edges away a row's output takes its inputs: as many fan-outs as a mini-batch needs.

        None where it is not known.
        """


@dataclass(frozen=True, slots=True)
class StackSpec(ModelSpec):
    """The settings that PyG's ready-made stacks of convolutions share."""

    # What errors call the model.
    name: ClassVar[str]
    hidden: int = 64
    """Width of the hidden layers."""
    layers: int = 2
    """Number of convolutions."""
    dropout: float = 0.5
    """Share of hidden values dropped while training."""
    input_dropout: float = 0.0
    """Share of input features dropped while training."""
    norm: str = "none"
    """Norm after each hidden convolution: none, batch or layer."""
    jk: str = "none"
    """Jumping knowledge, a last linear layer on the outputs of all: none, last, cat, max or lstm."""

    def __post_init__(self) -> None:
        check_counts(self.name, hidden=self.hidden, layers=self.layers)
        check_shares(self.name, dropout=self.dropout, input_dropout=self.input_dropout)
        norm_options(self.norm, self.name)
        jump_option(self.jk, self.name)

    @property
    def num_hops(self) -> int:
        return self.layers

    def stack(self, kind: type[nn.Module], num_features: int, num_classes: int, **options: Any) -> nn.Module:
        """Returns a model of a class that drops inputs, built from these settings and from `options`."""
        return kind(
            num_features,
            self.hidden,
            self.layers,
            num_classes,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            jk=jump_option(self.jk, self.name),
            **norm_options(self.norm, self.name),
            **options,
        )


class DropsInputs:
    """Drops input features before a PyG model sees them; put before the model's class in a list of bases.

    PyG's ready-made models drop hidden values only, while Kipf and Welling (and those who compare with them) drop the
    inputs too. As a base class instead of a wrapper it leaves the keys of the state_dict as they are.
    """

    def __init__(self, *sizes: int, input_dropout: float, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.input_dropout = nn.Dropout(input_dropout)

    def forward(self, x: Tensor, edge_index: Tensor, **options: Any) -> Tensor:
        out: Tensor = super().forward(self.input_dropout(x), edge_index, **options)  # type: ignore[misc]
        return out


def norm_options(norm: str, model: str) -> dict[str, Any]:
    """Returns PyG's arguments for a norm named as we name them."""
    check_choice(norm, _NORMS, f"model {model}: norm")
    return _NORMS[norm]


def jump_option(jk: str, model: str) -> str | None:
    """Returns PyG's jumping-knowledge mode."""
    check_choice(jk, _JUMPS, f"model {model}: jk")
    return None if jk == "none" else jk


def check_choice(value: str, choices: Any, what: str) -> None:
    """Raises ConfigError unless `value` is among `choices`."""
    if value not in choices:
        raise ConfigError(f"{what} should be one of {', '.join(choices)}; got {value!r}.")


def check_counts(model: str, **counts: int) -> None:
    """Raises ConfigError unless every count is at least 1."""
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"model {model}: {name} should be at least 1; got {value}.")


def check_shares(model: str, **shares: float) -> None:
    """Raises ConfigError unless every share is at least 0 and below 1."""
    for name, value in shares.items():
        if not 0 <= value < 1:
            raise ConfigError(f"model {model}: {name} should be at least 0 and below 1; got {value}.")

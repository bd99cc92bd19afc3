"""What gat and gatv2 share: checks, and PyG's `GAT` built from their settings."""

from typing import Protocol

from torch import nn
from torch_geometric.nn import GAT

from laconic.errors import ConfigError
from laconic.models.base import DropsInputs, check_counts, check_shares, jump_option, norm_options


class AttentionSettings(Protocol):
    """The settings of an attention model, as gat.py explains them."""

    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def dropout(self) -> float: ...
    @property
    def input_dropout(self) -> float: ...
    @property
    def residual(self) -> bool: ...
    @property
    def norm(self) -> str: ...
    @property
    def jk(self) -> str: ...


def check_attention(spec: AttentionSettings, name: str) -> None:
    """Raises ConfigError unless the settings fit each other."""
    check_counts(name, hidden=spec.hidden, layers=spec.layers, heads=spec.heads)
    check_shares(name, dropout=spec.dropout, input_dropout=spec.input_dropout)
    norm_options(spec.norm, name)
    jump_option(spec.jk, name)
    if spec.hidden % spec.heads:
        above = -(-spec.hidden // spec.heads) * spec.heads
        raise ConfigError(
            f"model {name}: hidden is the width of all heads together and should be a multiple of heads; got "
            f"hidden={spec.hidden} with heads={spec.heads}. Use hidden={above}, or another number of heads."
        )


def build_attention(spec: AttentionSettings, name: str, num_features: int, num_classes: int) -> nn.Module:
    """Returns PyG's GAT, of the first or the second form."""
    return GATWithInputDropout(
        num_features,
        spec.hidden,
        spec.layers,
        num_classes,
        v2=name == "gatv2",
        heads=spec.heads,
        dropout=spec.dropout,
        input_dropout=spec.input_dropout,
        residual=spec.residual,
        jk=jump_option(spec.jk, name),
        **norm_options(spec.norm, name),
    )


class GATWithInputDropout(DropsInputs, GAT):  # type: ignore[misc]
    """PyG's GAT, with dropout on the inputs too."""

"""Graph isomorphism network: Xu, Hu, Leskovec and Jegelka, ICLR 2019, https://arxiv.org/abs/1810.00826.

gin(hidden=128, layers=3)
"""

from dataclasses import dataclass
from typing import final

from torch import nn
from torch_geometric.nn import GIN

from laconic.models.base import DropsInputs, ModelSpec, check_counts, check_shares, jump_option, norm_options


@final
@dataclass(frozen=True, slots=True)
class Gin(ModelSpec):
    """PyG's `GIN`: each layer sums the neighbours and the node itself, then applies a two-layer perceptron.

    Sums grow with the degree, so on graphs with hubs it needs a norm: batch is the default, as in the paper.
    """

    hidden: int = 64
    """Width of the hidden layers."""
    layers: int = 2
    """Number of convolutions."""
    dropout: float = 0.5
    """Share of hidden values dropped while training."""
    input_dropout: float = 0.0
    """Share of input features dropped while training."""
    norm: str = "batch"
    """Norm within each perceptron and after each hidden convolution: none, batch or layer."""
    jk: str = "none"
    """Jumping knowledge, a last linear layer on the outputs of all: none, last, cat, max or lstm."""

    def __post_init__(self) -> None:
        check_counts("gin", hidden=self.hidden, layers=self.layers)
        check_shares("gin", dropout=self.dropout, input_dropout=self.input_dropout)
        norm_options(self.norm, "gin")
        jump_option(self.jk, "gin")

    @property
    def num_hops(self) -> int:
        return self.layers

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return GINWithInputDropout(
            num_features,
            self.hidden,
            self.layers,
            num_classes,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            jk=jump_option(self.jk, "gin"),
            **norm_options(self.norm, "gin"),
        )


@final
class GINWithInputDropout(DropsInputs, GIN):  # type: ignore[misc]
    """PyG's GIN, with dropout on the inputs too."""

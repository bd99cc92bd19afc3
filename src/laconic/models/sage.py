"""GraphSAGE: Hamilton, Ying and Leskovec, NeurIPS 2017, https://arxiv.org/abs/1706.02216.

sage(hidden=256, layers=3, aggregate="max")
"""

from dataclasses import dataclass
from typing import final

from torch import nn
from torch_geometric.nn import GraphSAGE

from laconic.models.base import (
    DropsInputs,
    ModelSpec,
    check_choice,
    check_counts,
    check_shares,
    jump_option,
    norm_options,
)


@final
@dataclass(frozen=True, slots=True)
class Sage(ModelSpec):
    """PyG's `GraphSAGE`: each layer adds a linear map of the node to one of its neighbours' mean, sum or maximum."""

    hidden: int = 64
    """Width of the hidden layers."""
    layers: int = 2
    """Number of convolutions."""
    dropout: float = 0.5
    """Share of hidden values dropped while training."""
    input_dropout: float = 0.0
    """Share of input features dropped while training."""
    aggregate: str = "mean"
    """How neighbours are put together: mean, sum or max."""
    norm: str = "none"
    """Norm after each hidden convolution: none, batch or layer."""
    jk: str = "none"
    """Jumping knowledge, a last linear layer on the outputs of all: none, last, cat, max or lstm."""

    def __post_init__(self) -> None:
        check_counts("sage", hidden=self.hidden, layers=self.layers)
        check_shares("sage", dropout=self.dropout, input_dropout=self.input_dropout)
        check_choice(self.aggregate, ("mean", "sum", "max"), "model sage: aggregate")
        norm_options(self.norm, "sage")
        jump_option(self.jk, "sage")

    @property
    def num_hops(self) -> int:
        return self.layers

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return GraphSAGEWithInputDropout(
            num_features,
            self.hidden,
            self.layers,
            num_classes,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            aggr=self.aggregate,
            jk=jump_option(self.jk, "sage"),
            **norm_options(self.norm, "sage"),
        )


@final
class GraphSAGEWithInputDropout(DropsInputs, GraphSAGE):  # type: ignore[misc]
    """PyG's GraphSAGE, with dropout on the inputs too."""

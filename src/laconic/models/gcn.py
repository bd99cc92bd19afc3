"""Graph convolutional network: Kipf and Welling, ICLR 2017, https://arxiv.org/abs/1609.02907.

The paper's network for Cora, Citeseer and Pubmed has 16 hidden values and drops inputs too, where the ready-made `GCN`
drops hidden values only. (Inputs that are not dropped are aggregated once and remembered: faster, and as accurate.)

    gcn(hidden=16, input_dropout=0.5)
"""

from dataclasses import dataclass
from typing import final

from torch import nn
from torch_geometric.nn import GCN

from laconic.models.base import DropsInputs, ModelSpec, check_counts, check_shares, jump_option, norm_options


@final
@dataclass(frozen=True, slots=True)
class Gcn(ModelSpec):
    """PyG's `GCN`: each layer averages over neighbours and the node itself, weighted by both their degrees."""

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
        check_counts("gcn", hidden=self.hidden, layers=self.layers)
        check_shares("gcn", dropout=self.dropout, input_dropout=self.input_dropout)
        norm_options(self.norm, "gcn")
        jump_option(self.jk, "gcn")

    @property
    def num_hops(self) -> int:
        return self.layers

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return GCNWithInputDropout(
            num_features,
            self.hidden,
            self.layers,
            num_classes,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            jk=jump_option(self.jk, "gcn"),
            **norm_options(self.norm, "gcn"),
        )


@final
class GCNWithInputDropout(DropsInputs, GCN):  # type: ignore[misc]
    """PyG's GCN, with dropout on the inputs too."""

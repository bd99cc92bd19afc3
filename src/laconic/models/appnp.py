"""Personalised propagation: Gasteiger, Bojchevski and Guennemann, ICLR 2019, https://arxiv.org/abs/1810.05997.

appnp(hops=10, alpha=0.1)
"""

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch_geometric.nn import APPNP, MLP

from laconic.models.base import ModelSpec, check_counts, check_shares


@final
@dataclass(frozen=True, slots=True)
class Appnp(ModelSpec):
    """A perceptron, then PyG's `APPNP`: its outputs are averaged over neighbours `hops` times, each time mixed with
    what they were.
    """

    hidden: int = 64
    """Width of the perceptron's hidden layers."""
    layers: int = 2
    """Linear layers of the perceptron."""
    hops: int = 10
    """How many times outputs are averaged over neighbours."""
    alpha: float = 0.1
    """Share of a node's own output kept at each of them: larger stays nearer to the node."""
    dropout: float = 0.5
    """Share of hidden values dropped while training."""
    input_dropout: float = 0.0
    """Share of input features dropped while training."""
    edge_dropout: float = 0.0
    """Share of edges dropped at each hop while training."""

    def __post_init__(self) -> None:
        check_counts("appnp", hidden=self.hidden, layers=self.layers, hops=self.hops)
        check_shares(
            "appnp",
            alpha=self.alpha,
            dropout=self.dropout,
            input_dropout=self.input_dropout,
            edge_dropout=self.edge_dropout,
        )

    @property
    def num_hops(self) -> int:
        return self.hops

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return PropagatedMLP(num_features, num_classes, self)


@final
class PropagatedMLP(nn.Module):
    """A perceptron and a propagation, which PyG has no ready-made model for."""

    def __init__(self, num_features: int, num_classes: int, spec: Appnp) -> None:
        super().__init__()
        self.input_dropout = nn.Dropout(spec.input_dropout)
        widths = [num_features, *[spec.hidden] * (spec.layers - 1), num_classes]
        self.mlp = MLP(widths, dropout=spec.dropout, norm=None)
        self.propagation = APPNP(K=spec.hops, alpha=spec.alpha, dropout=spec.edge_dropout)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        logits: Tensor = self.propagation(self.mlp(self.input_dropout(x)), edge_index, edge_weight)
        return logits

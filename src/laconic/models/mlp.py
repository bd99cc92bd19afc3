"""A perceptron that looks at no edge: what the features alone can say, to compare the others with.

mlp(hidden=128, layers=3)
"""

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch_geometric.nn import MLP

from laconic.models.base import ModelSpec, check_counts, check_shares, norm_options


@final
@dataclass(frozen=True, slots=True)
class Mlp(ModelSpec):
    """PyG's `MLP`, node by node."""

    hidden: int = 64
    """Width of the hidden layers."""
    layers: int = 2
    """Linear layers."""
    dropout: float = 0.5
    """Share of hidden values dropped while training."""
    input_dropout: float = 0.0
    """Share of input features dropped while training."""
    norm: str = "none"
    """Norm after each hidden layer: none, batch or layer."""

    def __post_init__(self) -> None:
        check_counts("mlp", hidden=self.hidden, layers=self.layers)
        check_shares("mlp", dropout=self.dropout, input_dropout=self.input_dropout)
        norm_options(self.norm, "mlp")

    @property
    def num_hops(self) -> int:
        return 0

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        widths = [num_features, *[self.hidden] * (self.layers - 1), num_classes]
        options = {"norm": None, **norm_options(self.norm, "mlp")}
        return MLPOfNodes(widths, dropout=self.dropout, input_dropout=self.input_dropout, **options)


@final
class MLPOfNodes(MLP):  # type: ignore[misc]
    """PyG's MLP, called like a graph network."""

    def __init__(self, widths: list[int], *, input_dropout: float, **options: object) -> None:
        super().__init__(widths, **options)
        self.input_dropout = nn.Dropout(input_dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        logits: Tensor = super().forward(self.input_dropout(x))
        return logits

"""Simplified graph convolution: Wu et al., ICML 2019, https://arxiv.org/abs/1902.07153.

sgc(hops=3)
"""

from dataclasses import dataclass
from typing import final

from torch import Tensor, nn
from torch_geometric.nn import SGConv

from laconic.models.base import ModelSpec, check_counts, check_shares


@final
@dataclass(frozen=True, slots=True)
class Sgc(ModelSpec):
    """PyG's `SGConv`: one linear map of the features averaged over neighbours `hops` times; nothing in between."""

    hops: int = 2
    """How many times features are averaged over neighbours."""
    input_dropout: float = 0.0
    """Share of input features dropped while training."""

    def __post_init__(self) -> None:
        check_counts("sgc", hops=self.hops)
        check_shares("sgc", input_dropout=self.input_dropout)

    @property
    def num_hops(self) -> int:
        return self.hops

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return SGC(num_features, num_classes, hops=self.hops, input_dropout=self.input_dropout)


@final
class SGC(nn.Module):
    """A network of one SGConv, which PyG has no ready-made model for."""

    def __init__(self, num_features: int, num_classes: int, *, hops: int, input_dropout: float) -> None:
        super().__init__()
        self.input_dropout = nn.Dropout(input_dropout)
        self.conv = SGConv(num_features, num_classes, K=hops)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        logits: Tensor = self.conv(self.input_dropout(x), edge_index, edge_weight)
        return logits

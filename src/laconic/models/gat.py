"""Graph attention network: Velickovic et al., ICLR 2018, https://arxiv.org/abs/1710.10903.

gat(hidden=64, heads=8)
"""

from dataclasses import dataclass
from typing import final

from torch import nn

from laconic.models._attention import build_attention, check_attention
from laconic.models.base import ModelSpec


@final
@dataclass(frozen=True, slots=True)
class Gat(ModelSpec):
    """PyG's `GAT`: each layer averages over neighbours by weights that it computes from both ends of an edge."""

    hidden: int = 64
    """Width of the hidden layers, all heads together."""
    layers: int = 2
    """Number of convolutions."""
    heads: int = 8
    """Attention heads; they share the width, so `hidden` has to be a multiple."""
    dropout: float = 0.5
    """Share of hidden values, and of attention weights, dropped while training."""
    input_dropout: float = 0.0
    """Share of input features dropped while training."""
    residual: bool = False
    """Whether each convolution adds a linear map of its input."""
    norm: str = "none"
    """Norm after each hidden convolution: none, batch or layer."""
    jk: str = "none"
    """Jumping knowledge, a last linear layer on the outputs of all: none, last, cat, max or lstm."""

    def __post_init__(self) -> None:
        check_attention(self, "gat")

    @property
    def num_hops(self) -> int:
        return self.layers

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return build_attention(self, "gat", num_features, num_classes)

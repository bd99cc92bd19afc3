"""Graph attention, second form: Brody, Alon and Yahav, ICLR 2022, https://arxiv.org/abs/2105.14491.

gatv2(hidden=64, heads=8)
"""

from dataclasses import dataclass
from typing import final

from torch import nn

from laconic.models._attention import build_attention, check_attention
from laconic.models.base import ModelSpec


@final
@dataclass(frozen=True, slots=True)
class Gatv2(ModelSpec):
    """PyG's `GAT` with v2=True: as gat, but which neighbour weighs most may differ from node to node."""

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
        check_attention(self, "gatv2")

    @property
    def num_hops(self) -> int:
        return self.layers

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return build_attention(self, "gatv2", num_features, num_classes)

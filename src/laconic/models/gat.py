"""Graph attention network: Velickovic et al., ICLR 2018, https://arxiv.org/abs/1710.10903.

gat(hidden=64, heads=8)
"""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn
from torch_geometric.nn import GAT

from laconic.errors import ConfigError
from laconic.models.base import DropsInputs, StackSpec, check_counts


@dataclass(frozen=True, slots=True)
class Gat(StackSpec):
    """PyG's `GAT`: each layer averages over neighbours by weights that it computes from both ends of an edge."""

    name: ClassVar[str] = "gat"
    hidden: int = 64
    """Width of the hidden layers, all heads together."""
    dropout: float = 0.5
    """Share of hidden values, and of attention weights, dropped while training."""
    heads: int = 8
    """Attention heads; they share the width, so `hidden` has to be a multiple."""
    residual: bool = False
    """Whether each convolution adds a linear map of its input."""

    def __post_init__(self) -> None:
        StackSpec.__post_init__(self)
        check_counts(self.name, heads=self.heads)
        if self.hidden % self.heads:
            above = -(-self.hidden // self.heads) * self.heads
            raise ConfigError(
                f"model {self.name}: hidden is the width of all heads together and should be a multiple of heads; got "
                f"hidden={self.hidden} with heads={self.heads}. Use hidden={above}, or another number of heads."
            )

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        options = {"v2": self.name == "gatv2", "heads": self.heads, "residual": self.residual}
        return self.stack(GATWithInputDropout, num_features, num_classes, **options)


@final
class GATWithInputDropout(DropsInputs, GAT):  # type: ignore[misc]
    """PyG's GAT, with dropout on the inputs too."""

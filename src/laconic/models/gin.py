"""Graph isomorphism network: Xu, Hu, Leskovec and Jegelka, ICLR 2019, https://arxiv.org/abs/1810.00826.

gin(hidden=128, layers=3)
"""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn
from torch_geometric.nn import GIN

from laconic.models.base import DropsInputs, StackSpec


@final
@dataclass(frozen=True, slots=True)
class Gin(StackSpec):
    """PyG's `GIN`: each layer sums the neighbours and the node itself, then applies a two-layer perceptron.

    Sums grow with the degree, so on graphs with hubs it needs a norm: batch is the default, as in the paper.
    """

    name: ClassVar[str] = "gin"
    norm: str = "batch"
    """Norm within each perceptron and after each hidden convolution: none, batch or layer."""

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return self.stack(GINWithInputDropout, num_features, num_classes)


@final
class GINWithInputDropout(DropsInputs, GIN):  # type: ignore[misc]
    """PyG's GIN, with dropout on the inputs too."""

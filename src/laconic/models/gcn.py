"""Graph convolutional network: Kipf and Welling, ICLR 2017, https://arxiv.org/abs/1609.02907.

The paper's network for Cora, Citeseer and Pubmed has 16 hidden values and drops inputs too, where the ready-made `GCN`
drops hidden values only. (Inputs that are not dropped are aggregated once and remembered: faster, and as accurate.)

    gcn(hidden=16, input_dropout=0.5)
"""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn
from torch_geometric.nn import GCN

from laconic.models.base import DropsInputs, StackSpec


@final
@dataclass(frozen=True, slots=True)
class Gcn(StackSpec):
    """PyG's `GCN`: each layer averages over neighbours and the node itself, weighted by both their degrees."""

    name: ClassVar[str] = "gcn"

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return self.stack(GCNWithInputDropout, num_features, num_classes)


@final
class GCNWithInputDropout(DropsInputs, GCN):  # type: ignore[misc]
    """PyG's GCN, with dropout on the inputs too."""

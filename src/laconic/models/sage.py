"""GraphSAGE: Hamilton, Ying and Leskovec, NeurIPS 2017, https://arxiv.org/abs/1706.02216.

sage(hidden=256, layers=3, aggregate="max")
"""

from dataclasses import dataclass
from typing import ClassVar, final

from torch import nn
from torch_geometric.nn import GraphSAGE

from laconic.models.base import DropsInputs, StackSpec, check_choice


@final
@dataclass(frozen=True, slots=True)
class Sage(StackSpec):
    """PyG's `GraphSAGE`: each layer adds a linear map of the node to one of its neighbours' mean, sum or maximum."""

    name: ClassVar[str] = "sage"
    aggregate: str = "mean"
    """How neighbours are put together: mean, sum or max."""

    def __post_init__(self) -> None:
        StackSpec.__post_init__(self)
        check_choice(self.aggregate, ("mean", "sum", "max"), "model sage: aggregate")

    def build(self, num_features: int, num_classes: int) -> nn.Module:
        return self.stack(GraphSAGEWithInputDropout, num_features, num_classes, aggr=self.aggregate)


@final
class GraphSAGEWithInputDropout(DropsInputs, GraphSAGE):  # type: ignore[misc]
    """PyG's GraphSAGE, with dropout on the inputs too."""

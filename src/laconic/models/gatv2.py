"""Graph attention, second form: Brody, Alon and Yahav, ICLR 2022, https://arxiv.org/abs/2105.14491.

gatv2(hidden=64, heads=8)
"""

from dataclasses import dataclass
from typing import ClassVar, final

from laconic.models.gat import Gat


@final
@dataclass(frozen=True, slots=True)
class Gatv2(Gat):
    """PyG's `GAT` with v2=True: as gat, but which neighbour weighs most may differ from node to node."""

    name: ClassVar[str] = "gatv2"

"""Which part each node belongs to: one file per way of choosing, and the table of their names.

parse_spec("metis(alpha=0.5)", PARTITIONERS, family="partitioner")
"""

from collections.abc import Mapping

from laconic.partitioners.base import Partitioner, Parts, assign_parts
from laconic.partitioners.fennel import Fennel
from laconic.partitioners.given import Given
from laconic.partitioners.hash import Hash
from laconic.partitioners.ldg import Ldg
from laconic.partitioners.metis import Metis
from laconic.partitioners.random import Random

PARTITIONERS: Mapping[str, type[Partitioner]] = {
    "random": Random,
    "hash": Hash,
    "metis": Metis,
    "ldg": Ldg,
    "fennel": Fennel,
    "given": Given,
}

__all__ = ["PARTITIONERS", "Fennel", "Given", "Hash", "Ldg", "Metis", "Partitioner", "Parts", "Random", "assign_parts"]

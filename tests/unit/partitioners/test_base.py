import pytest

from laconic.errors import ConfigError
from laconic.graph import Graph
from laconic.partitioners import Random, assign_parts


@pytest.mark.parametrize("num_parts", [0, -3])
def test_less_than_one_part_is_refused(small_graph: Graph, num_parts: int) -> None:
    with pytest.raises(ConfigError, match=f"1 or more, got {num_parts}"):
        assign_parts(small_graph, Random(), num_parts, seed=0)

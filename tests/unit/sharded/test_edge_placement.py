"""Edges at their destination, at their source, or by a cover: the same products, as few vectors as promised."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching
from tests.unit.sharded.product_runs import chunks_of, random_graph

from laconic.attach.aggregator import Linear
from laconic.comm import Communicator, Ledger, run_ranks
from laconic.graph import Shard
from laconic.sharded import edge_placement
from laconic.sharded.block import BlockMap
from laconic.sharded.edge_placement import with_edges_at
from laconic.sharded.placement import place

AGGREGATIONS = [
    Linear("sum"),
    Linear("mean"),
    Linear("gcn"),
    Linear("sum", weighted=True),
    Linear("gcn", weighted=True),
]


def placed(transport, graph, edges):
    communicator = Communicator(transport, Ledger(transport.rank))
    read, chunk_map = chunks_of(graph, communicator.num_ranks)
    placement = place(read, BlockMap.one_axis(chunk_map), communicator)
    return with_edges_at(placement, edges)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("edges", ["destination", "source", "cover"])
def test_products_and_their_transposes_are_those_of_the_whole_matrix(edges, num_ranks):
    graph = random_graph(40, 160)
    graph = replace(graph, edge_weight=torch.rand(160, generator=torch.Generator().manual_seed(1)).double())
    x = torch.randn(graph.num_nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def work(transport):
        placement = placed(transport, graph, edges)
        ids = placement.shard.node_ids
        found = {}
        for aggregation in AGGREGATIONS:
            operator = placement.operators.of(aggregation)
            found[aggregation] = operator.multiply(x[ids], 3), operator.transposed.multiply(x[ids], 3)
        return ids, found

    runs = run_ranks(num_ranks, work)
    for aggregation in AGGREGATIONS:
        whole = aggregation.on(Shard.whole(graph))
        for number, expected in enumerate((whole.multiply(x), whole.transposed.multiply(x))):
            joined = torch.empty_like(expected)
            for ids, found in runs:
                joined[ids] = found[aggregation][number]
            torch.testing.assert_close(joined, expected, rtol=0, atol=1e-12)


def test_vectors_under_cover_are_as_many_as_a_maximum_matching_of_scipy():
    graph, num_ranks = random_graph(60, 150), 4
    parts = np.arange(graph.num_nodes) * num_ranks // graph.num_nodes

    def work(transport):
        placement = placed(transport, graph, "cover")
        return placement.columns.splits.receive, placement.rows.splits.send

    sources, destinations = graph.edge_index.numpy()
    runs = run_ranks(num_ranks, work)
    for rank, (fetched, folded) in enumerate(runs):
        for peer in set(range(num_ranks)) - {rank}:
            meant = (parts[destinations] == rank) & (parts[sources] == peer)
            ones = np.ones(int(meant.sum()))
            cut = csr_matrix((ones, (destinations[meant], sources[meant])), shape=(graph.num_nodes,) * 2)
            assert fetched[peer] + folded[peer] == (maximum_bipartite_matching(cut, perm_type="column") >= 0).sum()
    assert sum(sum(folded) for _, folded in runs) > 0


def test_a_cover_that_does_not_fit_into_memory_is_left_out_on_all_ranks_with_a_message(monkeypatch, caplog):
    graph, needed = random_graph(60, 150), []
    monkeypatch.setattr(edge_placement, "cover_bytes", lambda edges, vertices: needed.append(edges) or 1 << 50)

    def work(transport):
        return placed(transport, graph, "cover").is_covered

    assert run_ranks(4, work) == [False] * 4
    assert sum(needed) == int((parts_of(graph, 4)[0] != parts_of(graph, 4)[1]).sum())
    (record,) = caplog.records
    assert "would need 1024.0 TiB on a rank" in record.message
    assert "leaves edges with their destinations" in record.message
    monkeypatch.undo()
    assert run_ranks(4, work) == [True] * 4


def parts_of(graph, num_ranks: int) -> np.ndarray:
    """The ranks of both ends of each edge, (2, E)."""
    return graph.edge_index.numpy() * num_ranks // graph.num_nodes

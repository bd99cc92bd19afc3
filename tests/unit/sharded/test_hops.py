"""Rows of other ranks within some hops: their features come once, sparse where that is smaller, and exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.sharded.product_runs import chunks_of, random_graph

from laconic.comm import Communicator, Ledger, run_ranks
from laconic.sharded.block import BlockMap
from laconic.sharded.hops import sparse_bytes, with_hops
from laconic.sharded.placement import place, sharing_features
from laconic.sharded.reach import with_reach


def hops_of(graph, num_ranks: int, reach: int):
    """What each rank sent for features, its placement, and its shard with the rows of its hops."""
    read, chunk_map = chunks_of(graph, num_ranks)

    def run(transport):
        communicator = Communicator(transport, Ledger(transport.rank))
        placement = with_reach(place(read, BlockMap.one_axis(chunk_map), communicator), reach)
        communicator.ledger.take(0)
        shard = with_hops(placement.shard, placement.hops, communicator.ledger)
        rows = communicator.ledger.take(0)
        sent = [row.num_bytes for row in rows if (row.operation, row.direction) == ("all_to_all", "sent")]
        assert {row.phase for row in rows} <= {"setup"}
        return sum(sent), placement, shard

    return run_ranks(num_ranks, run)


def bag_of_words(graph, share: float, width: int = 40):
    rng = np.random.default_rng(0)
    words = rng.normal(size=(graph.num_nodes, width)) * (rng.random((graph.num_nodes, width)) < share)
    words[3] = 0
    return replace(graph, x=torch.from_numpy(words).float())


@pytest.mark.parametrize(("share", "is_sparse"), [(0.05, True), (0.9, False), (0.0, True)])
def test_features_of_hops_travel_sparse_where_that_is_smaller(share, is_sparse):
    graph = bag_of_words(random_graph(60, 150), share)
    for sent, placement, shard in hops_of(graph, 3, 2):
        assert torch.equal(shard.x, graph.x[shard.node_ids])
        lists = [hop.block.columns._rows.lists.send_rows for hop in placement.hops]
        told = [placement.shard.x[rows] for rows in lists]
        assert sent == sum(sparse_bytes(rows) if is_sparse else rows.nbytes for rows in told) > 0


def test_the_bytes_of_sparse_rows_are_counts_columns_and_values():
    rows = torch.zeros(5, 7)
    rows[0, 3] = rows[4, 6] = 1.0
    assert sparse_bytes(rows) == 5 * 4 + 2 * (2 + 4)
    assert sparse_bytes(torch.ones(1, 40_000).double()) == 4 + 40_000 * (4 + 8)


def test_a_hop_without_a_row_has_an_empty_one_and_brings_nothing():
    ends = torch.cartesian_prod(torch.arange(12), torch.arange(12)).t()
    graph = bag_of_words(replace(random_graph(12, 5), edge_index=ends), 0.05)
    for _, placement, shard in hops_of(graph, 3, 2):
        # All other rows are one hop away.
        assert [hop.num_rows for hop in placement.hops] == [12, 13]
        assert torch.equal(shard.x[12], shard.x[0])
        assert placement.hops[1].block.adjacency.num_edges == 12 * 12


def test_the_edges_into_the_rows_of_each_hop_are_those_of_the_graph_with_their_weights():
    graph = random_graph(40, 90)
    # Duplicates, each with a weight of its own.
    ends = torch.cat([graph.edge_index, graph.edge_index[:, :30]], dim=1)
    weight = torch.rand(120, generator=torch.Generator().manual_seed(0)).double()
    whole = torch.zeros(40, 40).double().index_put_((ends[1], ends[0]), weight, accumulate=True)
    for _, placement, shard in hops_of(replace(graph, edge_index=ends, edge_weight=weight), 3, 3):
        before = placement.shard.num_rows
        for hop in placement.hops:
            edges, ids = hop.block.adjacency, shard.node_ids
            found = torch.zeros(before, hop.num_rows).double()
            places = torch.from_numpy(edges.row_of_edge).long(), torch.from_numpy(edges.indices).long()
            found.index_put_(places, torch.from_numpy(hop.block.weights), accumulate=True)
            # An empty row repeats an id; no edge begins at it.
            meant = torch.tensor([ids[:column].tolist().count(ids[column]) == 0 for column in range(hop.num_rows)])
            expected = whole[ids[:before]][:, ids[: hop.num_rows]] * meant
            torch.testing.assert_close(found[meant[:before]], expected[meant[:before]])
            before = hop.num_rows


def test_two_rows_on_a_rank_are_enough_and_one_is_too_few():
    assert [len(placement.hops) for _, placement, _ in hops_of(random_graph(6, 20), 3, 1)] == [1] * 3
    assert [len(placement.hops) for _, placement, _ in hops_of(random_graph(5, 20), 3, 1)] == [0] * 3


def test_owned_features_are_held_once():
    for _, placement, shard in hops_of(random_graph(60, 150), 3, 1):
        shared = sharing_features(placement, shard).shard.x
        assert torch.equal(shared, placement.shard.x)
        assert shared.data_ptr() == shard.x.data_ptr()

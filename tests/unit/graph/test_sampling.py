"""Neighbour sampling: what is drawn is there, is uniform, and depends on nothing but its key."""

import threading

import numpy as np
import pytest
import torch

from laconic.errors import ConfigError
from laconic.graph.sampling import NeighbourSampler, epoch_batches


def edges_of(shard):
    """The batch's edges as (source, destination) in the whole graph."""
    return [tuple(pair) for pair in shard.node_ids[shard.edge_index].t().tolist()]


def test_a_batch_starts_with_its_own_nodes_in_order(small_graph):
    rows = np.array([7, 3, 40])
    batch = NeighbourSampler(small_graph, (2, 2), seed=0).sample(rows, epoch=0, step=0)
    assert batch.node_ids[:3].tolist() == [7, 3, 40]
    assert batch.num_owned == 3
    assert batch.train_mask.nonzero().squeeze(1).tolist() == [0, 1, 2]
    assert len(set(batch.node_ids.tolist())) == batch.num_rows
    assert torch.equal(batch.x, small_graph.x[batch.node_ids])


def test_each_expanded_node_gets_as_many_neighbours_as_asked_for_or_as_it_has(small_graph):
    degrees = small_graph.adjacency.row_degrees
    batch = NeighbourSampler(small_graph, (3,), seed=0).sample(np.arange(60), epoch=0, step=0)
    assert batch.adjacency.row_degrees.tolist() == np.minimum(degrees, 3).tolist()


def test_every_sampled_edge_exists_and_none_is_drawn_twice(small_graph):
    batch = NeighbourSampler(small_graph, (2, 3), seed=1).sample(np.arange(10), epoch=2, step=3)
    whole = [tuple(pair) for pair in small_graph.edge_index.t().tolist()]
    for edge in set(edges_of(batch)):
        assert edges_of(batch).count(edge) <= whole.count(edge)


def test_all_neighbours_give_the_exact_neighbourhood(small_graph):
    batch = NeighbourSampler(small_graph, (-1, -1), seed=0).sample(np.array([5]), epoch=0, step=0)
    sources, destinations = small_graph.edge_index
    one_hop = set(sources[destinations == 5].tolist()) | {5}
    into_one_hop = torch.isin(destinations, torch.tensor(sorted(one_hop)))
    expected = sorted(map(tuple, small_graph.edge_index[:, into_one_hop].t().tolist()))
    assert sorted(edges_of(batch)) == expected


def test_edge_weights_travel_with_their_edges(make_graph):
    graph = make_graph(weighted=True)
    weight_sum = {}
    for source, destination, weight in zip(*graph.edge_index.tolist(), graph.edge_weight.tolist(), strict=True):
        weight_sum[source, destination] = weight_sum.get((source, destination), 0.0) + weight
    batch = NeighbourSampler(graph, (-1,), seed=0).sample(np.arange(60), epoch=0, step=0)
    drawn = {}
    for edge, weight in zip(edges_of(batch), batch.edge_weight.tolist(), strict=True):
        drawn[edge] = drawn.get(edge, 0.0) + weight
    assert drawn == pytest.approx(weight_sum)


def test_draws_are_uniform(make_graph):
    """Chi-square over the neighbours of one node of degree 12, 3 drawn at a time, 2,000 times."""
    graph = make_graph(num_nodes=30, num_edges=0)
    star = torch.stack([torch.arange(1, 13), torch.zeros(12, dtype=torch.int64)])
    graph = type(graph)(star, graph.x, graph.y, graph.train_mask, graph.val_mask, graph.test_mask)
    sampler = NeighbourSampler(graph, (3,), seed=0)
    counts = np.zeros(13)
    for step in range(2000):
        counts[[source for source, _ in edges_of(sampler.sample(np.array([0]), epoch=0, step=step))]] += 1
    expected = 2000 * 3 / 12
    # Draws without replacement vary less than a multinomial: the usual bound (11 degrees of freedom, 0.999) is safe.
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 31.3


@pytest.mark.parametrize("fanout", [31, 32, 33, 64, 200, 399])
def test_many_neighbours_are_drawn_once_each(make_graph, fanout):
    graph = make_graph(num_nodes=500, num_edges=0)
    star = torch.stack([torch.arange(1, 401), torch.zeros(400, dtype=torch.int64)])
    graph = type(graph)(star, graph.x, graph.y, graph.train_mask, graph.val_mask, graph.test_mask)
    drawn = set()
    for step in range(60):
        batch = NeighbourSampler(graph, (fanout,), seed=0).sample(np.array([0]), epoch=0, step=step)
        sources = batch.node_ids[batch.edge_index[0]].tolist()
        assert len(set(sources)) == len(sources) == fanout
        drawn.update(sources)
    # A neighbour is passed over 60 times with a chance of (1 - 31 / 400)^60, less than 1 in 100.
    assert len(drawn) > 380


def test_the_same_key_gives_the_same_batch_and_another_does_not(small_graph):
    sampler = NeighbourSampler(small_graph, (2, 2), seed=0)
    rows = np.arange(20)
    first = edges_of(sampler.sample(rows, epoch=1, step=2))
    assert edges_of(sampler.sample(rows, epoch=1, step=2)) == first
    assert edges_of(sampler.sample(rows, epoch=1, step=3)) != first
    assert edges_of(NeighbourSampler(small_graph, (2, 2), seed=1).sample(rows, epoch=1, step=2)) != first


def stream(graph, **options):
    sampler = NeighbourSampler(graph, (2, 2), seed=3)
    return epoch_batches(sampler, torch.arange(50), batch_size=8, epoch=4, **options)


@pytest.mark.parametrize(("num_workers", "prefetch"), [(1, 1), (3, 2), (4, 20)])
def test_workers_and_prefetch_do_not_change_the_batches(num_workers, prefetch, small_graph):
    plain = [(batch.node_ids.tolist(), edges_of(batch)) for batch in stream(small_graph)]
    other = stream(small_graph, num_workers=num_workers, prefetch=prefetch)
    assert [(batch.node_ids.tolist(), edges_of(batch)) for batch in other] == plain


def test_an_epoch_holds_every_row_once(small_graph):
    owned = [node for batch in stream(small_graph) for node in batch.node_ids[: batch.num_owned].tolist()]
    assert sorted(owned) == list(range(50))
    assert owned != list(range(50))


def test_starting_in_the_middle_gives_the_same_rest(small_graph):
    whole = [edges_of(batch) for batch in stream(small_graph)]
    assert [edges_of(batch) for batch in stream(small_graph, start_step=3)] == whole[3:]


def test_leaving_early_ends_the_threads(small_graph):
    batches = stream(small_graph, num_workers=2)
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sampler")]
    assert list(batches) == []


def test_an_error_in_a_worker_reaches_the_consumer(small_graph):
    sampler = NeighbourSampler(small_graph, (2,), seed=0)
    batches = epoch_batches(sampler, torch.tensor([5, 1000]), batch_size=2, epoch=0)
    with pytest.raises(IndexError):
        next(batches)


def test_waiting_is_measured(small_graph):
    batches = stream(small_graph)
    list(batches)
    assert 0 < batches.wait_seconds < 60


@pytest.mark.parametrize("fanouts", [(), (0,), (5, -2)])
def test_fanouts_that_make_no_sense_are_refused(fanouts, small_graph):
    with pytest.raises(ConfigError, match="fanouts should be one number per layer"):
        NeighbourSampler(small_graph, fanouts, seed=0)

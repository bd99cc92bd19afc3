"""Sweeps over fixed chunks: with edge weights, one sweep averages to the full gradient; for one layer, and for two.

Linear layers that divide by the degree in the whole graph, a loss linear in the output, weights that do not change
meanwhile. No randomness is averaged over: it holds for the chunks at hand.
"""

import numpy as np
import pytest
import torch
from tests.unit.papers.grappa.tiny_graphs import edges_among, gradient, tiny_graph

from laconic.graph.operators.linear import LinearOperator
from laconic.papers.grappa.coverage import node_coverage
from laconic.papers.grappa.factors import row_factors
from laconic.papers.grappa.sweep import Sweep, plan_sweep

# (chunks, ranks, variable chunks)
SHAPES = [(5, 5, 1), (5, 5, 2), (8, 4, 3), (7, 3, 2), (6, 2, 2), (3, 3, 2), (4, 1, 0)]
SCHEDULES = ["cyclic", "random", "affinity"]


def make_case(shape, schedule, seed=0):
    """A graph of 40 nodes in chunks of unequal size, every chunk with nodes, and a sweep over them."""
    num_chunks, num_ranks, num_variable = shape
    graph = tiny_graph(40, 0.15, seed)
    rng = np.random.default_rng(seed)
    chunk = rng.permutation(np.concatenate([np.arange(num_chunks), rng.integers(0, num_chunks, 40 - num_chunks)]))
    bridges = np.zeros((num_chunks, num_chunks), np.int64)
    np.add.at(bridges, (chunk[graph.destinations], chunk[graph.sources]), 1)
    base = np.array_split(np.arange(num_chunks), num_ranks)
    return graph, chunk, plan_sweep(schedule, base, num_variable, bridges=bridges, seed=seed)


def full_gradient(graph, num_layers):
    whole = edges_among(graph.sources, graph.destinations, np.arange(graph.num_nodes))
    mean = LinearOperator(whole, row_scale=1 / graph.degrees)
    return gradient([mean] * num_layers, graph.x, graph.pull, np.full(graph.num_nodes, 1 / graph.num_nodes))


def sweep_gradient(graph, chunk, sweep, edge_weight, num_layers=1, corrected_again=False):
    """Mean over the super-epochs of one sweep of the gradient that all ranks together come to.

    Args:
        edge_weight: rank -> weight of an edge by (destination chunk, source chunk).
        corrected_again: weigh nodes by their coverage as well, still over the number of nodes.
    """
    total = 0.0
    counts = np.array([np.isin(chunk, base).sum() for base in sweep.base])
    for super_epoch in range(sweep.num_super_epochs):
        for rank in range(sweep.num_ranks):
            rows = np.concatenate([np.flatnonzero(chunk == held) for held in sweep.held(super_epoch, rank)])
            adjacency = edges_among(graph.sources, graph.destinations, rows)
            chunk_of = chunk[rows]
            values = edge_weight(rank)[chunk_of[adjacency.row_of_edge], chunk_of[adjacency.indices]]
            operator = LinearOperator(adjacency, values, row_scale=1 / graph.degrees[rows])
            # Rows of the base come first; only they have a loss here.
            owned, part = slice(0, int(counts[rank])), torch.from_numpy(rows)
            weights = np.ones(counts[rank])
            if corrected_again:
                weights = node_coverage(adjacency, graph.degrees[rows], 1)[owned]
            factors = row_factors(
                weights,
                combination="self_normalised",
                counts=counts,
                rank=rank,
                rank_totals=counts.astype(np.float64),
                rho=1.0,
            )
            total = total + gradient([operator] * num_layers, graph.x[part], graph.pull[part], factors, owned)
    return total / sweep.num_super_epochs


def ones(sweep):
    return lambda rank: np.ones((sweep.num_chunks, sweep.num_chunks))


def by_times_held(sweep):
    """Super-epochs over those in which an edge is held, whichever end was missing."""
    return lambda rank: sweep.num_super_epochs / np.maximum(sweep.times_held(rank), 1)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_sweep_averages_to_the_full_gradient(shape, schedule):
    graph, chunk, sweep = make_case(shape, schedule)
    full = full_gradient(graph, 1)
    np.testing.assert_allclose(sweep_gradient(graph, chunk, sweep, sweep.edge_weight_of_held_row), full, atol=1e-10)
    if sweep.num_super_epochs > 1:
        assert np.abs(sweep_gradient(graph, chunk, sweep, ones(sweep)) - full).max() > 1e-3


def test_the_same_as_a_weighted_local_mean_times_the_sum_of_its_edge_weights_over_the_degree():
    graph, chunk, sweep = make_case((5, 5, 1), "cyclic")
    total = np.zeros_like(graph.full_means)
    for super_epoch in range(sweep.num_super_epochs):
        for rank in range(sweep.num_ranks):
            rows = np.concatenate([np.flatnonzero(chunk == held) for held in sweep.held(super_epoch, rank)])
            adjacency = edges_among(graph.sources, graph.destinations, rows)
            of = chunk[rows]
            values = sweep.edge_weight_of_held_row(rank)[of[adjacency.row_of_edge], of[adjacency.indices]]
            weight_sums = np.bincount(adjacency.row_of_edge, weights=values, minlength=len(rows))
            some = np.where(weight_sums > 0, weight_sums, 1)
            local_mean = LinearOperator(adjacency, values, row_scale=1 / some)
            local_means = (local_mean @ graph.x[torch.from_numpy(rows)]).numpy()
            node_weights = weight_sums / graph.degrees[rows]
            owned = np.flatnonzero(of == rank)
            total[rows[owned]] += (node_weights[:, None] * local_means)[owned]
    np.testing.assert_allclose(total / sweep.num_super_epochs, graph.full_means, atol=1e-10)


def test_fixed_parts_never_see_what_the_sweep_would_bring():
    graph, chunk, _ = make_case((5, 5, 1), "cyclic")
    for num_variable in (0, 2):
        fixed = plan_sweep("fixed", [[rank] for rank in range(5)], num_variable, bridges=None, seed=0)
        biased = sweep_gradient(graph, chunk, fixed, fixed.edge_weight_of_held_row)
        assert np.abs(biased - full_gradient(graph, 1)).max() > 1e-3


def test_coverage_on_top_of_sweep_exact_weights_is_biased():
    graph, chunk, sweep = make_case((5, 5, 1), "cyclic")
    full, twice = (
        full_gradient(graph, 1),
        sweep_gradient(graph, chunk, sweep, sweep.edge_weight_of_held_row, corrected_again=True),
    )
    # Not even along the full gradient: no factor mends it.
    along = (twice * full).sum() / (full * full).sum()
    assert along < 0.9
    assert np.abs(twice / along - full).max() > 1e-3


def two_hop_gradient(graph, chunk, sweep):
    """The full gradient of two layers, over the paths that the owner of their end holds in some super-epoch."""
    neighbours = [graph.sources[graph.destinations == node] for node in range(graph.num_nodes)]
    owner = {c: rank for rank, base in enumerate(sweep.base) for c in base}
    times = [sweep.times_held(rank) for rank in range(sweep.num_ranks)]
    total, num_paths, num_seen = 0.0, 0, 0
    for v in range(graph.num_nodes):
        for u in neighbours[v]:
            for w in neighbours[u]:
                num_paths += 1
                if times[owner[chunk[v]]][chunk[u], chunk[w]] > 0:
                    num_seen += 1
                    share = 1 / graph.degrees[v] / graph.degrees[u] / graph.num_nodes
                    total = total + share * np.outer(graph.x[w].numpy(), graph.pull[v].numpy())
    return total, num_seen / num_paths


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_layers_are_exact_over_the_paths_that_fit_when_a_held_row_is_not_weighted_for_its_absences(shape, schedule):
    graph, chunk, sweep = make_case(shape, schedule)
    expected, _ = two_hop_gradient(graph, chunk, sweep)
    exact = sweep_gradient(graph, chunk, sweep, sweep.edge_weight_of_held_row, num_layers=2)
    np.testing.assert_allclose(exact, expected, atol=1e-10)
    if sweep.num_super_epochs > 1:
        over = sweep_gradient(graph, chunk, sweep, by_times_held(sweep), num_layers=2)
        assert np.abs(over - expected).max() > 1e-3


def test_two_layers_are_exact_without_reserve_where_every_two_chunks_come_to_every_rank_together():
    # All pairs of three foreign chunks, two at a time.
    graph, chunk, _ = make_case((4, 4, 2), "cyclic")
    foreign = [[c for c in range(4) if c != rank] for rank in range(4)]
    variable = tuple(tuple((f[i], f[j]) for f in foreign) for i, j in ((0, 1), (1, 2), (0, 2)))
    sweep = Sweep(((0,), (1,), (2,), (3,)), variable)
    expected, seen = two_hop_gradient(graph, chunk, sweep)
    assert seen == 1
    np.testing.assert_allclose(full_gradient(graph, 2), expected, atol=1e-12)
    exact = sweep_gradient(graph, chunk, sweep, sweep.edge_weight_of_held_row, num_layers=2)
    np.testing.assert_allclose(exact, expected, atol=1e-10)


def test_with_one_variable_chunk_paths_over_three_chunks_are_never_seen():
    graph, chunk, sweep = make_case((5, 5, 1), "cyclic")
    expected, seen = two_hop_gradient(graph, chunk, sweep)
    assert seen < 0.75
    assert np.abs(expected - full_gradient(graph, 2)).max() > 1e-3

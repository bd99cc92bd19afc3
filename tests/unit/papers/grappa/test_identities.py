"""Random chunks: what coverage makes of the expected gradient, by going through every way of dealing the nodes out.

Exact where a node's gradient is additive over its neighbours (one linear layer, loss linear in the output), or where
one path is drawn per node, whatever the gradient.
"""

import itertools

import numpy as np
import pytest
import torch
from tests.unit.papers.grappa.tiny_graphs import edges_among, gradient, tiny_graph

from laconic.graph.normalize import mean_operator, sum_operator
from laconic.papers.grappa.coverage import node_coverage, shrink
from laconic.papers.grappa.factors import row_factors

NUM_RANKS = 3
RHO = 1 / NUM_RANKS


def assignments(num_nodes, num_ranks=NUM_RANKS):
    return [np.array(ranks) for ranks in itertools.product(range(num_ranks), repeat=num_nodes)]


def balanced_assignments(num_nodes, num_ranks):
    size = num_nodes // num_ranks
    return [ranks for ranks in assignments(num_nodes, num_ranks) if np.all(np.bincount(ranks) == size)]


def views(graph, ranks, num_ranks=NUM_RANKS):
    """What each rank holds: its rows, the edges among them, and the coverage of one hop."""
    for rank in range(num_ranks):
        rows = np.flatnonzero(ranks == rank)
        if len(rows):
            adjacency = edges_among(graph.sources, graph.destinations, rows)
            yield rank, rows, adjacency, node_coverage(adjacency, graph.degrees[rows], 1)


@pytest.fixture(scope="module")
def expected():
    """A graph of 6 nodes, and the mean over all 3^6 assignments of four ways to add up each node's neighbours."""
    graph = tiny_graph(6, 0.45)
    sums = {name: np.zeros(graph.x.shape) for name in ("unweighted", "covered", "global", "both")}
    every = assignments(graph.num_nodes)
    for ranks in every:
        for _, rows, adjacency, coverage in views(graph, ranks):
            local = graph.x[torch.from_numpy(rows)]
            local_mean = (mean_operator(adjacency) @ local).numpy()
            global_mean = (sum_operator(adjacency) @ local).numpy() / graph.degrees[rows, None]
            sums["unweighted"][rows] += local_mean
            sums["covered"][rows] += coverage[:, None] * local_mean
            sums["global"][rows] += global_mean
            sums["both"][rows] += coverage[:, None] * global_mean
    return graph, {name: total / len(every) for name, total in sums.items()}


def test_the_local_mean_times_coverage_is_rho_times_the_full_mean_at_every_node(expected):
    graph, means = expected
    np.testing.assert_allclose(means["covered"] / RHO, graph.full_means, atol=1e-10)


def test_unweighted_nodes_with_few_neighbours_lose_most(expected):
    graph, means = expected
    kept = 1 - (1 - RHO) ** graph.degrees
    assert kept.max() - kept.min() > 0.2
    np.testing.assert_allclose(means["unweighted"], kept[:, None] * graph.full_means, atol=1e-10)


def test_dividing_by_the_degree_in_the_whole_graph_is_a_correction_of_its_own(expected):
    graph, means = expected
    np.testing.assert_allclose(means["global"] / RHO, graph.full_means, atol=1e-10)


def test_both_corrections_together_are_biased_by_degree(expected):
    graph, means = expected
    kept = RHO * (1 + (graph.degrees - 1) * RHO) / graph.degrees
    # No common factor could mend it.
    assert kept.max() / kept.min() > 1.5
    np.testing.assert_allclose(means["both"], kept[:, None] * graph.full_means, atol=1e-10)


@pytest.mark.parametrize(("num_nodes", "num_ranks"), [(6, 2), (6, 3), (8, 2)])
def test_over_balanced_parts_the_ht_gradient_is_the_full_gradient(num_nodes, num_ranks):
    graph = tiny_graph(num_nodes, 0.4, seed=1)
    whole = edges_among(graph.sources, graph.destinations, np.arange(num_nodes))
    full = gradient([mean_operator(whole)], graph.x, graph.pull, np.full(num_nodes, 1 / num_nodes))
    rho = (num_nodes / num_ranks - 1) / (num_nodes - 1)
    counts = np.full(num_ranks, num_nodes // num_ranks)
    every = balanced_assignments(num_nodes, num_ranks)
    total, coverages = np.zeros_like(full), []
    for ranks in every:
        held = list(views(graph, ranks, num_ranks))
        rank_totals = np.array([coverage.sum() for *_, coverage in held])
        coverages.append(rank_totals.sum() / num_nodes)
        for rank, rows, adjacency, coverage in held:
            if not rank_totals.any():
                # No edge within any part: a step of nothing, which is refused. In the expectation it counts as 0.
                continue
            factors = row_factors(
                coverage, combination="ht", counts=counts, rank=rank, rank_totals=rank_totals, rho=rho
            )
            part = torch.from_numpy(rows)
            total += gradient([mean_operator(adjacency)], graph.x[part], graph.pull[part], factors)
    np.testing.assert_allclose(total / len(every), full, atol=1e-10)
    # And rho is what the mean coverage is on average, so that ranks may measure it.
    assert np.mean(coverages) == pytest.approx(rho, abs=1e-12)


def test_a_path_drawn_at_random_and_weighted_by_its_inclusion_is_exact_for_any_gradient():
    graph = tiny_graph(6, 0.45, seed=2)
    neighbours = [graph.sources[graph.destinations == node] for node in range(graph.num_nodes)]
    direction, x = graph.pull[0].sum().item(), graph.x.numpy()

    def path_gradient(v, u, w):
        return (1 - np.tanh(direction * (x[v] + 2 * x[u] + 3 * x[w])) ** 2) * (x[w] - x[u])

    full = np.stack(
        [
            np.mean([np.mean([path_gradient(v, u, w) for w in neighbours[u]], 0) for u in neighbours[v]], 0)
            for v in range(graph.num_nodes)
        ]
    )
    every, total = assignments(graph.num_nodes), np.zeros_like(full)
    for ranks in every:
        one_hop, two_hops = np.empty(graph.num_nodes), np.empty(graph.num_nodes)
        for _, rows, adjacency, coverage in views(graph, ranks):
            one_hop[rows], two_hops[rows] = coverage, node_coverage(adjacency, graph.degrees[rows], 2)
        local = [near[ranks[near] == ranks[v]] for v, near in enumerate(neighbours)]
        for v in range(graph.num_nodes):
            mean_weight = 0.0
            for u in local[v]:
                for w in local[u]:
                    chance, weight = 1 / len(local[v]) / len(local[u]), one_hop[v] * one_hop[u]
                    inclusion = RHO ** (len({v, u, w}) - 1)
                    total[v] += chance * weight / inclusion * path_gradient(v, u, w)
                    mean_weight += chance * weight
            assert mean_weight == pytest.approx(two_hops[v], abs=1e-12)
    np.testing.assert_allclose(total / len(every), full, atol=1e-10)


@pytest.mark.parametrize("sizes", [(4, 4), (5, 2, 3, 6)], ids=str)
def test_shrunk_to_ones_the_mean_is_what_plain_data_parallel_gives_to_the_bit(sizes):
    # To the bit where the number of ranks is a power of two, by which it does not matter when one divides.
    rng, num_ranks = np.random.default_rng(0), len(sizes)
    inputs = [torch.from_numpy(rng.normal(size=(size, 4))) for size in sizes]
    weights = [rng.random(size) for size in sizes]
    model = torch.linspace(-1, 1, 4, dtype=torch.float64, requires_grad=True)
    shrunk = [shrink(w, 1.0) for w in weights]
    totals, counts = np.array([w.sum() for w in shrunk]), np.array(sizes)
    ours, plain = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for rank, rows in enumerate(inputs):
        factors = row_factors(shrunk[rank], combination="mean", counts=counts, rank=rank, rank_totals=totals, rho=1.0)
        ours += torch.autograd.grad((torch.from_numpy(factors) * torch.tanh(rows @ model)).sum(), model)[0]
        plain += torch.autograd.grad(torch.tanh(rows @ model).mean(), model)[0]
    assert torch.equal(ours, plain / num_ranks)


def test_one_rank_covers_everything_and_trains_on_the_plain_mean():
    graph = tiny_graph(7, 0.4)
    rows = np.arange(7)
    adjacency = edges_among(graph.sources, graph.destinations, rows)
    for num_hops in (1, 2, 3):
        coverage = node_coverage(adjacency, graph.degrees, num_hops)
        factors = row_factors(
            coverage,
            combination="self_normalised",
            counts=np.array([7]),
            rank=0,
            rank_totals=np.array([coverage.sum()]),
            rho=1.0,
        )
        np.testing.assert_array_equal(factors, np.full(7, 1.0 / 7))

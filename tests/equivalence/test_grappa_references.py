"""What a step of `grappa` computes, against plain PyG on one machine that does the same the long way.

The subgraph of the chunks that a rank holds, each training node's loss times a factor that is worked out here by
counting.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.equivalence.halo_runs import make_graph
from tests.equivalence.isolated_runs import check_gradients, in_degrees, models_of, parts_of, run_grappa
from tests.equivalence.test_gradient_only_references import STACKS
from torch_geometric.utils import subgraph

from laconic.papers.grappa.sweep import plan_sweep
from laconic.sharded.chunk_map import ChunkMap

# What is missing is missing: (settings, chunks, ranks, variable).
SHAPES = [(3, 3, 1), (4, 4, 2), (5, 2, 2), (2, 2, 0)]
CORRECTIONS = [
    {"correction": "none"},
    {"correction": "node"},
    {"correction": "node", "hops": 2, "combination": "mean"},
    {"correction": "node", "shrinkage": 0.3, "combination": "ht"},
    {"correction": "batch"},
    {"correction": "batch", "combination": "mean", "shrinkage": 0.5},
    {"correction": "batch", "combination": "ht"},
    {"correction": "none", "combination": "mean"},
]


def as_text(settings):
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def held_nodes(graph, num_chunks, num_ranks, num_variable, super_epoch):
    """By rank: which nodes it owns, and which it holds."""
    parts = parts_of(graph, num_chunks)
    chunk_map = ChunkMap.even(torch.bincount(parts, minlength=num_chunks).tolist(), num_ranks)
    base = [chunk_map.chunks_of(rank) for rank in range(num_ranks)]
    sweep = plan_sweep("cyclic", base, num_variable, bridges=None, seed=0)
    return [
        (
            torch.isin(parts, torch.tensor(base[rank])),
            torch.isin(parts, torch.tensor(sweep.held(super_epoch, rank))),
        )
        for rank in range(num_ranks)
    ]


def walks_held(graph, is_held, num_hops):
    """The share of walks against the edges, so many hops, that never leave what is held, (N,)."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    for source, destination in graph.edge_index.T.tolist():
        if is_held[source] and is_held[destination]:
            matrix[destination, source] += 1
    degrees = in_degrees(graph)
    share = torch.ones(graph.num_nodes, dtype=torch.float64)
    for _ in range(num_hops):
        share = torch.where(degrees > 0, matrix @ share / degrees.clamp(min=1), 1.0)
    return share


def factors_of(graph, held, correction="none", hops=1, shrinkage=0.0, combination="self_normalised"):
    """By rank: what the loss of each of its training nodes is multiplied by, (N,), 0 elsewhere."""
    trains = [owned & graph.train_mask for owned, _ in held]
    weights = []
    for (_, is_held), mask in zip(held, trains, strict=True):
        weight = walks_held(graph, is_held, hops) if correction != "none" else torch.ones(60, dtype=torch.float64)
        if correction == "batch" and mask.any():
            weight = torch.full_like(weight, float(weight[mask].mean()))
        weights.append(torch.where(mask, (1 - shrinkage) * weight + shrinkage, 0.0))
    if combination == "self_normalised":
        return [weight / sum(other.sum() for other in weights) for weight in weights]
    num_with = sum(bool(mask.any()) for mask in trains)
    rho = float(sum(weight.sum() for weight in weights) / graph.train_mask.sum()) if combination == "ht" else 1.0
    return [weight / (num_with * max(int(mask.sum()), 1) * rho) for weight, mask in zip(weights, trains, strict=True)]


def reference_gradients(model, graph, held, factors):
    """The gradient that all ranks come to, each on the subgraph of what it holds."""
    model = copy.deepcopy(model).train()
    total = 0.0
    for (_, is_held), factor in zip(held, factors, strict=True):
        nodes = is_held.nonzero().squeeze(1)
        edge_index, _ = subgraph(nodes, graph.edge_index, relabel_nodes=True, num_nodes=graph.num_nodes)
        losses = F.cross_entropy(model(graph.x[nodes], edge_index), graph.y[nodes], reduction="none")
        total = total + (losses * factor[nodes]).sum()
    total.backward()
    return total.item(), {key: p.grad for key, p in model.named_parameters()}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("correction", CORRECTIONS, ids=as_text)
@pytest.mark.parametrize("name", ["GCN", "GAT", "batch norm"])
def test_missing_neighbours_are_missing_and_losses_are_weighted_for_it(name, correction, shape):
    graph = make_graph()
    num_chunks, num_ranks, num_variable = shape
    settings = f"chunks={num_chunks}, variable={num_variable}, partitioner=random, {as_text(correction)}"
    rank = run_grappa(STACKS[name], graph, num_ranks, settings, 1)[0]
    held = held_nodes(graph, *shape, 0)
    factors = factors_of(graph, held, **correction)
    loss, gradients = reference_gradients(models_of(STACKS[name], 1)[0], graph, held, factors)
    assert rank.losses[0] == pytest.approx(loss, rel=0, abs=1e-10)
    check_gradients(rank.gradients[0], gradients)


@pytest.mark.parametrize("name", ["SAGE", "GIN", "user's own", "SAGE max"])
def test_variable_chunks_change_from_super_epoch_to_super_epoch(name):
    graph, shape = make_graph(), (4, 4, 1)
    settings = "variable=1, repartition_every=2, partitioner=random, correction=node"
    rank = run_grappa(STACKS[name], graph, 4, settings, 8)[0]
    plain = models_of(STACKS[name], 1)[0]
    for epoch in range(8):
        if epoch:
            plain.load_state_dict(rank.states[epoch - 1])
        held = held_nodes(graph, *shape, epoch // 2)
        loss, gradients = reference_gradients(plain, graph, held, factors_of(graph, held, "node"))
        assert rank.losses[epoch] == pytest.approx(loss, rel=0, abs=1e-10)
        check_gradients(rank.gradients[epoch], gradients)


def global_operator(graph, kind, is_held, weights=None):
    """Dense: messages among the nodes held, divided by degrees in the whole graph, (N, N)."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    degrees = in_degrees(graph)
    # GCN gives each node one loop of weight 1, in place of those that it has.
    loops = torch.zeros_like(degrees)
    for number, (source, destination) in enumerate(graph.edge_index.T.tolist()):
        loops[destination] += float(source == destination)
        if is_held[source] and is_held[destination] and not (kind == "gcn" and source == destination):
            matrix[destination, source] += 1.0 if weights is None else weights[number]
    if kind == "mean":
        return matrix / degrees.clamp(min=1)[:, None]
    scale = (degrees - loops + 1).rsqrt()
    return scale[:, None] * (matrix + torch.eye(graph.num_nodes, dtype=torch.float64)) * scale


def dense_gradients(model, graph, kind, operators, owned):
    model = copy.deepcopy(model)
    total = 0.0
    for operator, mine in zip(operators, owned, strict=True):
        x = graph.x
        for layer in model.layers:
            if kind == "gcn" and hasattr(layer, "propagate"):
                x = operator @ layer.lin(x) + layer.bias
            elif hasattr(layer, "propagate"):
                x = layer.lin_l(operator @ x) + layer.lin_r(x)
            else:
                x = layer(x)
        rows = mine & graph.train_mask
        total = total + F.cross_entropy(x[rows], graph.y[rows], reduction="sum") / graph.train_mask.sum()
    total.backward()
    return {key: p.grad for key, p in model.named_parameters()}


@pytest.mark.parametrize("correction", ["degree", "sweep"])
@pytest.mark.parametrize(("name", "kind"), [("GCN", "gcn"), ("SAGE", "mean")])
def test_degrees_of_the_whole_graph_and_weights_of_a_sweep_are_in_the_operators(name, kind, correction):
    graph, shape = make_graph(), (5, 5, 2)
    rank = run_grappa(STACKS[name], graph, 5, f"variable=2, partitioner=random, correction={correction}", 1)[0]
    parts = parts_of(graph, 5)
    sweep = plan_sweep("cyclic", [[number] for number in range(5)], 2, bridges=None, seed=0)
    held = held_nodes(graph, *shape, 0)
    operators = []
    for number, (_, is_held) in enumerate(held):
        table = torch.from_numpy(sweep.edge_weight_of_held_row(number))
        weights = table[parts[graph.edge_index[1]], parts[graph.edge_index[0]]] if correction == "sweep" else None
        operators.append(global_operator(graph, kind, is_held, weights))
    expected = dense_gradients(models_of(STACKS[name], 1)[0], graph, kind, operators, [owned for owned, _ in held])
    check_gradients(rank.gradients[0], expected)

"""What a step of `gradient_only` computes, against plain PyG on one machine that does the same the long way.

Remembered neighbours: the whole graph, where rows of other ranks enter a layer as constants. Missing neighbours: the
subgraph of the chunks that a rank holds, each training node's loss times a factor that is worked out here by counting.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.equivalence.halo_runs import IN, OUT, Stack, make_graph
from tests.equivalence.isolated_runs import (
    OwnConv,
    check_follows,
    check_gradients,
    in_degrees,
    models_of,
    parts_of,
    run_isolated,
)
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv
from torch_geometric.utils import subgraph

from laconic.comm.codecs import MessageKey, parse_codec
from laconic.isolated.sweep import plan_sweep
from laconic.sharded.chunk_map import ChunkMap

STACKS = {
    "GCN": lambda: Stack(GCNConv(IN, 8), nn.ReLU(), GCNConv(8, 8), nn.ReLU(), GCNConv(8, OUT)),
    "SAGE": lambda: Stack(SAGEConv(IN, 8), nn.ReLU(), SAGEConv(8, OUT)),
    "SAGE max": lambda: Stack(SAGEConv(IN, 8, aggr="max"), nn.Tanh(), SAGEConv(8, OUT, aggr="max")),
    "GAT": lambda: Stack(GATConv(IN, 4, heads=2), nn.ELU(), GATConv(8, OUT)),
    "GIN": lambda: Stack(GINConv(nn.Linear(IN, 8)), nn.ReLU(), GINConv(nn.Linear(8, OUT))),
    "user's own": lambda: Stack(OwnConv(IN, 8), nn.Tanh(), OwnConv(8, OUT)),
    "batch norm": lambda: Stack(SAGEConv(IN, 8), nn.BatchNorm1d(8), nn.ReLU(), SAGEConv(8, 8), SAGEConv(8, OUT)),
}


class Remembering:
    """The whole graph on one machine, trained as ranks do that remember each other's rows."""

    def __init__(self, model, graph, owner, num_ranks, codec):
        self.model, self.graph, self.codec = model, graph, parse_codec(codec)
        self.masks = [owner == rank for rank in range(num_ranks)]
        self.buffers = [
            {id(m): (m.running_mean.clone(), m.running_var.clone()) for m in self.norms()} for _ in self.masks
        ]
        self.kept = {}

    def norms(self):
        return [module for module in self.model.modules() if isinstance(module, nn.BatchNorm1d)]

    def refresh(self):
        """Keeps every layer's input, in eval mode, with the statistics of all ranks."""
        counts = torch.tensor([float(mask.sum()) for mask in self.masks], dtype=torch.float64)[:, None]
        for norm in self.norms():
            means, variances = (torch.stack([own[id(norm)][k] for own in self.buffers]) for k in (0, 1))
            norm.running_mean = (means * counts).sum(0) / counts.sum()
            spread = variances + (means - norm.running_mean) ** 2
            norm.running_var = (spread * counts).sum(0) / counts.sum()
            for own in self.buffers:
                own[id(norm)] = (norm.running_mean.clone(), norm.running_var.clone())
        self.model.eval()
        with torch.no_grad():
            x = self.graph.x
            for number, layer in enumerate(self.model.layers):
                if hasattr(layer, "propagate"):
                    self.kept[number] = x if number == 0 else self.arrived(x)
                    x = self.convolve(number, layer, x)
                else:
                    x = layer(x)

    def arrived(self, x):
        """Rows as they are at the other end; rounding to the nearest does not depend on who sends them."""
        key = MessageKey(0, 0, 0, 0, 0, "forward", 0, 1, np.arange(len(x)))
        packet = self.codec.encode(x, key, 8.0)
        return self.codec.decode(packet, key, 8.0, width=x.shape[1], dtype=x.dtype)

    def convolve(self, number, layer, x):
        rows = [layer(torch.where(mask[:, None], x, self.kept[number]), self.graph.edge_index) for mask in self.masks]
        return self.owned(rows)

    def owned(self, rows):
        return sum(torch.where(mask[:, None], own, 0.0) for mask, own in zip(self.masks, rows, strict=True))

    def loss(self):
        x = self.graph.x
        for number, layer in enumerate(self.model.layers):
            if hasattr(layer, "propagate"):
                x = self.convolve(number, layer, x)
            elif isinstance(layer, nn.BatchNorm1d):
                x = self.owned([self.normalise(layer, x, rank) for rank in range(len(self.masks))])
            else:
                x = layer(x)
        return F.cross_entropy(x[self.graph.train_mask], self.graph.y[self.graph.train_mask])

    def normalise(self, norm, x, rank):
        """A rank's own statistics, in its own buffers."""
        mean, variance = self.buffers[rank][id(norm)]
        own = F.batch_norm(x[self.masks[rank]], mean, variance, norm.weight, norm.bias, training=True)
        return torch.zeros_like(x).index_put((self.masks[rank],), own)


@pytest.mark.parametrize(
    ("name", "num_ranks", "codec"),
    [
        *((name, num_ranks, "identity") for name in STACKS for num_ranks in (2, 3)),
        *((name, 3, codec) for name in ("GCN", "GAT") for codec in ("quantize(bits=4, stochastic=False)", "cast")),
    ],
)
def test_remembered_neighbours_are_constants_in_every_step(name, num_ranks, codec):
    graph, epochs, every = make_graph(), 7, 3
    plain = models_of(STACKS[name], 1)[0]
    reference = Remembering(plain, graph, parts_of(graph, num_ranks), num_ranks, codec)
    settings = f"keep=rows, repartition_every={every}, gradual=False, partitioner=random, codec={codec}"
    rank = run_isolated(STACKS[name], graph, num_ranks, settings, epochs)[0]

    def loss_of(epoch):
        # The runs of this test evaluate after every epoch, and statistics are combined for it.
        reference.refresh() if epoch % every == 0 else combine_only(reference)
        plain.train()
        return reference.loss()

    check_follows(rank, plain, loss_of, epochs)


class CountsCalls(nn.Module):
    """Keeps count of what comes after the last convolution; one count for all ranks."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def __deepcopy__(self, memo):
        return CountsCalls(self.calls)

    def forward(self, x):
        self.calls.append(1)
        return x


def test_a_refresh_ends_with_the_last_rows_that_it_fetches():
    """The first one shows which those are; later ones do not run the model to its end."""

    def num_calls(every):
        calls = []
        run_isolated(
            lambda: Stack(SAGEConv(IN, 8), SAGEConv(8, OUT), CountsCalls(calls)),
            make_graph(),
            2,
            f"repartition_every={every}, gradual=False",
            4,
        )
        return len(calls)

    assert num_calls(1) == num_calls(4) > 0


def combine_only(reference):
    kept = dict(reference.kept)
    reference.refresh()
    reference.kept = kept


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
    settings = (
        f"remember=False, chunks={num_chunks}, variable={num_variable}, partitioner=random, {as_text(correction)}"
    )
    rank = run_isolated(STACKS[name], graph, num_ranks, settings, 1)[0]
    held = held_nodes(graph, *shape, 0)
    factors = factors_of(graph, held, **correction)
    loss, gradients = reference_gradients(models_of(STACKS[name], 1)[0], graph, held, factors)
    assert rank.losses[0] == pytest.approx(loss, rel=0, abs=1e-10)
    check_gradients(rank.gradients[0], gradients)


@pytest.mark.parametrize("name", ["SAGE", "GIN", "user's own", "SAGE max"])
def test_variable_chunks_change_from_super_epoch_to_super_epoch(name):
    graph, shape = make_graph(), (4, 4, 1)
    settings = "remember=False, variable=1, repartition_every=2, partitioner=random, correction=node"
    rank = run_isolated(STACKS[name], graph, 4, settings, 8)[0]
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


@pytest.mark.parametrize("correction", ["none, normalise=whole", "sweep"])
@pytest.mark.parametrize(("name", "kind"), [("GCN", "gcn"), ("SAGE", "mean")])
def test_degrees_of_the_whole_graph_and_weights_of_a_sweep_are_in_the_operators(name, kind, correction):
    graph, shape = make_graph(), (5, 5, 2)
    rank = run_isolated(
        STACKS[name], graph, 5, f"remember=False, variable=2, partitioner=random, correction={correction}", 1
    )[0]
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

"""What a step of `gradient_only` computes, against plain PyG on one machine that does the same the long way.

The whole graph on one machine, where historical rows of other ranks enter a layer as constants.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.equivalence.halo_runs import IN, OUT, Stack, make_graph
from tests.equivalence.isolated_runs import (
    OwnConv,
    check_follows,
    models_of,
    parts_of,
    run_isolated,
)
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

from laconic.comm.codecs import MessageKey, parse_codec

STACKS = {
    "GCN": lambda: Stack(GCNConv(IN, 8), nn.ReLU(), GCNConv(8, 8), nn.ReLU(), GCNConv(8, OUT)),
    "SAGE": lambda: Stack(SAGEConv(IN, 8), nn.ReLU(), SAGEConv(8, OUT)),
    "SAGE max": lambda: Stack(SAGEConv(IN, 8, aggr="max"), nn.Tanh(), SAGEConv(8, OUT, aggr="max")),
    "GAT": lambda: Stack(GATConv(IN, 4, heads=2), nn.ELU(), GATConv(8, OUT)),
    "GIN": lambda: Stack(GINConv(nn.Linear(IN, 8)), nn.ReLU(), GINConv(nn.Linear(8, OUT))),
    "user's own": lambda: Stack(OwnConv(IN, 8), nn.Tanh(), OwnConv(8, OUT)),
    "batch norm": lambda: Stack(SAGEConv(IN, 8), nn.BatchNorm1d(8), nn.ReLU(), SAGEConv(8, 8), SAGEConv(8, OUT)),
}


class Historical:
    """The whole graph on one machine, trained as ranks do that cache each other's rows."""

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
def test_historical_neighbours_are_constants_in_every_step(name, num_ranks, codec):
    graph, epochs, every = make_graph(), 7, 3
    plain = models_of(STACKS[name], 1)[0]
    reference = Historical(plain, graph, parts_of(graph, num_ranks), num_ranks, codec)
    settings = f"keep=rows, refresh_every={every}, gradual=False, partitioner=random, codec={codec}"
    rank = run_isolated(STACKS[name], graph, num_ranks, settings, epochs)[0]

    def loss_of(epoch):
        # The runs of this test evaluate after every epoch, and statistics are combined for it.
        reference.refresh() if epoch % every == 0 else combine_only(reference)
        plain.train()
        return reference.loss()

    check_follows(rank, plain, loss_of, epochs)


def combine_only(reference):
    kept = dict(reference.kept)
    reference.refresh()
    reference.kept = kept

"""Which tensors count as the graph's own: they themselves, and only as long as nobody changed them."""

import copy

import numpy as np
import torch
from torch_geometric.nn import SAGEConv

from laconic.attach import attach
from laconic.graph import Shard
from laconic.graph.sampling import NeighbourSampler


def test_edges_changed_in_place_stay_changed_after_a_batch(make_graph):
    graph = make_graph()
    conv = SAGEConv(8, 4)
    plain = copy.deepcopy(conv)
    attachment = attach(conv, Shard.whole(graph))
    graph.edge_index[:, :50] = 0
    with attachment.using(Shard.whole(make_graph(seed=3))):
        pass
    torch.testing.assert_close(conv(graph.x, graph.edge_index), plain(graph.x, graph.edge_index))


def test_a_batch_drawn_in_inference_mode_runs(small_graph):
    conv = SAGEConv(8, 4)
    plain = copy.deepcopy(conv)
    attachment = attach(conv, Shard.whole(small_graph))
    with torch.inference_mode():
        batch = NeighbourSampler(small_graph, (3,), seed=0).sample(np.arange(5), epoch=0, step=0)
        with attachment.using(batch):
            torch.testing.assert_close(conv(batch.x, batch.edge_index), plain(batch.x, batch.edge_index))

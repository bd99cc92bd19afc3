"""Which rows are the embeddings. That ranks give the rows of one process: test_session_outputs.py."""

import numpy as np
import torch
from torch import nn
from torch_geometric.nn import GCNConv

from laconic.session import join


class NamedInputs(nn.Module):
    """Its last layer gets its edges before its rows."""

    def __init__(self):
        super().__init__()
        self.first, self.last = GCNConv(8, 6), GCNConv(6, 4)

    def forward(self, x, edge_index):
        return self.last(edge_index=edge_index, x=self.first(x, edge_index))


def test_rows_are_found_by_their_name_wherever_they_stand(small_graph):
    session = join(small_graph)
    model = session.attach(NamedInputs())
    found = session.embeddings()
    with torch.no_grad():
        expected = model.first(small_graph.x, small_graph.edge_index)
    np.testing.assert_allclose(found.vectors, expected.numpy(), rtol=0, atol=1e-6)
    assert found.layer == "input of last"

"""A plain PyG training loop on Laconic's kernels: the lines marked with + are all that changes.

python examples/plain_loop.py                # a small built-in graph
python examples/plain_loop.py cora.npz
torchrun --nproc-per-node 2 examples/plain_loop.py cora.npz      # the same on two ranks
"""

import sys

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import laconic  # +


def main(source: str = "sbm", num_epochs: int = 30) -> dict[str, float]:
    session = laconic.join(source)  # +
    torch.manual_seed(0)
    model = GraphSAGE(session.num_features, 64, num_layers=2, out_channels=session.num_classes, dropout=0.5)
    model = session.attach(model)  # +
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch, shard in session.epochs(num_epochs):  # +
        out = model(shard.x, shard.edge_index)
        loss = session.loss(F.cross_entropy, out, shard)  # +
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            scores = session.evaluate()
            if session.rank == 0:
                print(f"epoch {epoch}: loss {loss.item():.4f}, {scores}")
    return session.evaluate()


if __name__ == "__main__":
    main(*sys.argv[1:])

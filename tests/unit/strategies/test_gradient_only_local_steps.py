"""gradient_only with sync_every: ranks step apart, and are alike again when the next forward pass begins."""

import copy

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from laconic.attach.forward import run_model
from laconic.strategies import parse_strategy

NUM_EPOCHS = 5


def test_parameters_are_averaged_after_every_second_step_and_before_the_next_forward_pass(on_ranks, make_graph):
    graph = make_graph()
    torch.manual_seed(0)
    model = GraphSAGE(8, 16, 2, 4)
    copies = [copy.deepcopy(model) for _ in range(2)]

    def run(communicator):
        strategy, mine = parse_strategy("gradient_only(sync_every=2, gradual=False)"), copies[communicator.rank]
        strategy.attach(mine, strategy.place(graph, communicator), seed=0)
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
        used, num_bytes = [], []
        for epoch in range(1, NUM_EPOCHS + 1):
            mine.train()
            shard = strategy.start_epoch(epoch)
            communicator.ledger.take(0)
            out = run_model(mine, shard)
            used.append([parameter.detach().clone() for parameter in mine.parameters()])
            rows = shard.train_rows
            loss = strategy.share_loss(F.cross_entropy(out[rows], shard.y[rows], reduction="sum") / strategy.num_train)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows = communicator.ledger.take(epoch)
            assert {row.phase for row in rows} <= {"gradients"}
            num_bytes.append(sum(row.num_bytes for row in rows if row.direction == "sent"))
        with strategy.settled():
            used.append([parameter.detach().clone() for parameter in mine.parameters()])
        return used, num_bytes

    (ours, num_bytes), (theirs, _) = on_ranks(2, run)
    is_alike = [all(torch.equal(*pair) for pair in zip(*both, strict=True)) for both in zip(ours, theirs, strict=True)]
    # The forward passes of epochs 1 to 5, and the end.
    assert is_alike == [True, False, True, False, True, True]
    # 2 (P - 1) / P of the parameters and of what rows weigh, where an average was due.
    num_words = sum(parameter.numel() for parameter in model.parameters()) + 1
    assert num_bytes == [0, 0, 4 * num_words, 0, 4 * num_words]

"""laconic.launch for real: a script's function in processes, a notebook's in threads, failures and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time

import pytest

from laconic import launch
from laconic.errors import RankFailedError

# Runs as a file, and line by line at a prompt.
SCRIPT = """
import dataclasses
import torch
import torch.nn.functional as F
import laconic
from torch_geometric.nn import GCNConv

class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = GCNConv(in_channels, out_channels)
    def forward(self, x, edge_index):
        return self.conv(x, edge_index)

def train(source, weight):
    graph = laconic.load(source)
    session = laconic.join(dataclasses.replace(graph, x=graph.x.double()))
    model = session.attach(Net(session.num_features, session.num_classes).double())
    model.conv.lin.weight.data[:] = weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch, shard in session.epochs(2):
        loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return session.rank, session.predict(), model.state_dict()

def main():
    source = "sbm(nodes=60, classes=3, features=4)"
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    (_, one, alone), = laconic.launch(train, source, weight, ranks=1)
    (zero, many, state), (rank, none, other) = laconic.launch(train, source, weight, ranks=2)
    assert (zero, rank, len(none.node_ids)) == (0, 1, 0)
    assert many.node_ids.tolist() == list(range(60))
    assert (many.classes == one.classes).all()
    for name in alone:
        torch.testing.assert_close(state[name], alone[name], rtol=0, atol=1e-10)
        assert torch.equal(state[name], other[name])
    print("all", "well")

"""
GUARDED = SCRIPT + 'if __name__ == "__main__":\n    main()\n'


def run(command, folder, **options):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False, **options)
    assert "all well" in done.stdout, done.stderr
    return done


def test_the_function_of_a_script_runs_in_processes(tmp_path):
    (tmp_path / "script.py").write_text(GUARDED)
    run([sys.executable, "script.py"], tmp_path)


def test_a_function_typed_at_a_prompt_runs_too(tmp_path):
    run([sys.executable, "-i", "-q"], tmp_path, input=SCRIPT + "main()\n")


def fails_on_rank_1(text):
    if os.environ["RANK"] == "1":
        raise ValueError(text)
    return text


def test_what_a_rank_says_is_raised_here(capfd):
    with pytest.raises(RankFailedError, match=r"Rank 1: ValueError: not today \(.*test_launch_function\.py") as caught:
        launch(fails_on_rank_1, "not today", ranks=2)
    assert caught.value.rank == 1
    assert "rank 1 | ValueError: not today" in capfd.readouterr().err


def interrupts_its_starter():
    if os.environ["RANK"] == "1":
        os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)


def test_ctrl_c_ends_all_processes():
    with pytest.raises(KeyboardInterrupt):
        launch(interrupts_its_starter, ranks=2)

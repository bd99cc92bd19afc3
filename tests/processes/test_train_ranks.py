"""`laconic train` and `laconic predict` on ranks that are real processes: one command, one run folder, one end."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from laconic.cli.main import app
from laconic.datasets import load
from laconic.records import EpochRecord, LedgerRecord, read_records
from laconic.store import write_store
from laconic.trainer.checkpoint import Checkpoints

SBM = "sbm(nodes=300)"
RUN = Path("runs/sbm-nodes-300-gcn-001")
QUICK = ["--model", "gcn(hidden=8)", "--set", "run.tensorboard=false"]
ENDLESS = ["--epochs", "1000000"]
LACONIC = [sys.executable, "-m", "laconic"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_loop.py"
# Wide, so that messages stand on one line.
ENVIRONMENT = {**os.environ, "COLUMNS": "400"}


def run(command, *arguments, folder):
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )


@contextmanager
def started(*arguments, folder):
    """A command of ours that is killed at the latest at the end of the block, and its ranks with it."""
    command = [*LACONIC, *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def epochs_in(folder):
    path = folder / "metrics.jsonl"
    return read_records(path, EpochRecord) if path.exists() else []


def wait_for_epochs(folder, num_epochs, process):
    deadline = time.monotonic() + 50
    while len(epochs_in(folder)) < num_epochs:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ranks_of(launcher):
    """The pids of the ranks that a command has started, in rank order: that in which they were started."""
    return [int(child) for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder in which `laconic train --ranks 2` was run, and what it said."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, run(LACONIC, "train", SBM, "--ranks", 2, "--epochs", 4, *QUICK, folder=folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of three parts."""
    graph, folder = load(SBM), tmp_path_factory.mktemp("data") / "store"
    write_store(graph, np.arange(graph.num_nodes) % 3, folder)
    return folder


def test_two_ranks_leave_one_run_folder_and_one_summary(trained):
    folder, done = trained
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (folder / "runs").iterdir()] == [RUN.name]
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "Ranks 2" in lines
    assert "Received by all ranks per epoch exact exchange share" in lines
    # Beside halo exchange: the default is exact too, and never moves more.
    assert any(re.fullmatch(r"rows \S+ \S+ \S+ \S+ [\d.]+%", line) for line in lines)
    assert "Loading PyTorch and PyTorch Geometric for 2 ranks\nStarting 2 ranks\n" in done.stderr
    assert "Strategy exchange on 2 ranks, by default." in done.stderr
    assert done.stdout.count("Best epoch") == 1
    assert "rank 1 |" not in done.stderr
    assert {row.rank for row in read_records(folder / RUN / "ledger.jsonl", LedgerRecord)} == {0, 1}


def test_under_torchrun_the_same_is_learned_and_told_once(trained, tmp_path):
    done = run(TORCHRUN, "-m", "laconic", "train", SBM, "--epochs", 4, *QUICK, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [RUN.name]
    assert done.stdout.count("Best epoch") == done.stdout.count("Received by all ranks") == 1
    losses, expected = ([row.loss for row in epochs_in(folder / RUN)] for folder in (tmp_path, trained[0]))
    # Ranks may have other numbers of threads there.
    assert losses == pytest.approx(expected, rel=1e-4)


def test_two_ranks_predict_what_one_does(trained):
    folder = trained[0]
    made = folder / RUN
    done = run(LACONIC, "predict", made, "--ranks", 2, "--out", "two.npz", folder=folder)
    assert done.returncode == 0, done.stderr
    best = Checkpoints(made / "checkpoints").load("best").epoch
    assert done.stdout == f"Wrote two.npz: 300 nodes, by the model of epoch {best}.\n"
    alone = CliRunner().invoke(app, ["predict", str(made), "--out", str(folder / "one.npz")])
    assert alone.exit_code == 0, alone.output
    with np.load(folder / "one.npz") as one, np.load(folder / "two.npz") as two:
        order = one["node_ids"].argsort()
        assert np.array_equal(two["node_ids"], one["node_ids"][order])
        np.testing.assert_allclose(two["probabilities"], one["probabilities"][order], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # On most machines more than there are cores: refused before they start.
        (["--ranks", 400], "has 3 chunks, and each of the 400 ranks needs one at least. Run on 1 to 3 ranks"),
        (["--ranks", 2, "--set", "training.batch_size=8"], "batch_size"),
    ],
)
def test_what_all_ranks_refuse_is_told_once(store, tmp_path, arguments, message):
    done = run(LACONIC, "train", store, *arguments, *QUICK, folder=tmp_path)
    assert done.returncode == 2
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert message in told
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def interrupted(store, tmp_path_factory):
    """The folder of a run on two ranks whose command got SIGTERM, its exit code, and what it wrote."""
    folder = tmp_path_factory.mktemp("interrupted")
    with started("train", store, "--ranks", 2, "--name", "run", *ENDLESS, *QUICK, folder=folder) as launcher:
        wait_for_epochs(folder / "run", 2, launcher)
        launcher.terminate()
        out, err = launcher.communicate(timeout=30)
    return folder / "run", launcher.returncode, out, err


def test_sigterm_to_the_command_leaves_a_checkpoint(interrupted):
    folder, exit_code, out, err = interrupted
    assert exit_code == 128 + signal.SIGTERM, err
    last = Checkpoints(folder / "checkpoints").load("last").epoch
    assert last == len(epochs_in(folder)) >= 2
    assert f"Interrupted after {last} whole epochs. Continue with: laconic train --resume run" in err
    assert out.count("Run folder") == 1


def test_ranks_go_on_and_when_one_is_killed_the_command_names_it_and_leaves_nobody_behind(interrupted):
    folder = interrupted[0]
    before = [row.loss for row in epochs_in(folder)]
    with started("train", "--resume", folder, "--ranks", 2, *ENDLESS, folder=folder.parent) as launcher:
        wait_for_epochs(folder, len(before) + 2, launcher)
        ranks = ranks_of(launcher.pid)
        assert len(ranks) == 2
        # Copies, which torch was imported for once: a command of their own would be another one.
        assert all(command_of(rank) == command_of(launcher.pid) for rank in ranks)
        os.kill(ranks[1], signal.SIGKILL)
        _, err = launcher.communicate(timeout=25)
    assert launcher.returncode == 128 + signal.SIGKILL
    assert "Rank 1 was killed" in err
    assert "Traceback" not in err
    assert not any(is_running(pid) for pid in ranks)
    rows = epochs_in(folder)
    assert [row.epoch for row in rows] == list(range(1, len(rows) + 1))
    assert [row.loss for row in rows[: len(before)]] == before


def test_the_plain_loop_under_torchrun_prints_once(tmp_path):
    done = run(TORCHRUN, EXAMPLE, SBM, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["epoch 10", "epoch 20", "epoch 30"]

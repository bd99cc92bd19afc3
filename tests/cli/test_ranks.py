"""What `--ranks` refuses and warns of before any rank is started; nothing here starts one."""

import pytest
from typer.testing import CliRunner

from laconic.cli import ranks as ranks_module
from laconic.cli.main import app
from laconic.launching import local

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def started(tmp_path, monkeypatch):
    """Notes how many ranks would be started."""
    numbers = []
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(local, "run_local_ranks", lambda command, num_ranks, **_: numbers.append(num_ranks) or 0)
    return numbers


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("single", "The strategy single is for one rank, but there are 2. Use the strategy exchange"),
        (
            "gradients_only",
            "Unknown strategy 'gradients_only'. Choices: auto, exchange, full_graph, gradient_only, grappa, single. "
            "Did you mean 'gradient_only'?",
        ),
        ("full_graph(", "cannot be read"),
    ],
)
def test_a_strategy_that_cannot_be_is_refused_before_ranks_are_started(strategy, message, started, monkeypatch):
    monkeypatch.setattr(ranks_module, "num_usable_cores", lambda: 2)
    result = RUNNER.invoke(app, ["train", "--ranks", "2", "--strategy", strategy])
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not started


def test_ranks_that_share_cores_are_warned_of(started, monkeypatch):
    monkeypatch.setattr(ranks_module, "num_usable_cores", lambda: 2)
    result = RUNNER.invoke(app, ["train", "--ranks", "64"])
    words = " ".join(result.stderr.split())
    assert "Warning: 64 ranks share 2 cores and take turns" in words
    assert "18.8 GiB for all" in words
    assert started == [64]


@pytest.mark.parametrize("strategy", ["auto", "exchange", "compressed_halo", "compressed_halo(codec=cast)"])
def test_a_strategy_is_started_under_its_present_and_its_earlier_name(strategy, started, monkeypatch):
    monkeypatch.setattr(ranks_module, "num_usable_cores", lambda: 2)
    assert RUNNER.invoke(app, ["train", "--ranks", "2", "--strategy", strategy]).exit_code == 0
    assert started == [2]


def test_ranks_with_a_core_each_are_not_warned_of(started, monkeypatch):
    monkeypatch.setattr(ranks_module, "num_usable_cores", lambda: 2)
    result = RUNNER.invoke(app, ["train", "--ranks", "2"])
    assert result.stderr == "Loading PyTorch and PyTorch Geometric for 2 ranks\n"
    assert started == [2]


def test_what_else_can_be_refused_is_before_more_ranks_than_cores_are_started(started, monkeypatch):
    monkeypatch.setattr(ranks_module, "num_usable_cores", lambda: 2)
    result = RUNNER.invoke(app, ["train", "--ranks", "3", "-s", "training.batch_size=8"])
    assert "exchange trains on the whole graph in each step" in " ".join(result.stderr.split())
    assert not started

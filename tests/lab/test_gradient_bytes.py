"""Training in isolation sends gradients over the wire, and hardly anything else: the ledger and the links agree."""

import sys
from pathlib import Path

import numpy as np
import pytest

from laconic.datasets import load
from laconic.lab import Lab
from laconic.records import LedgerRecord, read_records
from laconic.store import write_store

EPOCHS = 20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two parts that are as mixed as can be."""
    graph = load("sbm(nodes=1000, degree=10)")
    write_store(graph, np.random.default_rng(0).integers(0, 2, graph.num_nodes), tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.parametrize(
    "strategy",
    [
        "gradient_only(refresh_every=5)",
        "grappa(repartition_every=5, variable=1, supply=peers, correction=node)",
    ],
)
def test_the_ledger_books_what_the_links_carried(store: Path, tmp_path: Path, strategy: str) -> None:
    command = [sys.executable, "-m", "laconic", "train", str(store), "--name", str(tmp_path / "run")]
    settings = ["--model", "sage(hidden=512, layers=3)", "--strategy", strategy, "--epochs", str(EPOCHS)]
    rare = ["--set", f"training.evaluate_every={EPOCHS}", "--set", "run.tensorboard=false"]
    with Lab(hosts=2, link="none") as lab:
        result = lab.run([*command, *settings, *rare], capture=True)
    assert result.exit_code == 0, [host.stderr for host in result.hosts]
    rows = read_records(tmp_path / "run" / "ledger.jsonl", LedgerRecord)
    for host in result.hosts:
        own = [row for row in rows if (row.rank, row.direction) == (host.host, "sent")]
        booked = sum(row.num_bytes for row in own)
        gradients = sum(row.num_bytes for row in own if row.phase == "gradients")
        assert gradients > 0.8 * booked > 10e6, "the test is about gradients"
        assert host.traffic.sent_once_bytes == pytest.approx(booked, rel=0.03)

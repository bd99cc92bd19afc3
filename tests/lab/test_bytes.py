"""What the ledger books is what goes over the wire, up to headers, acknowledgements and the finding of each other."""

import sys
from pathlib import Path

import numpy as np
import pytest

from laconic.datasets import load
from laconic.lab import Lab
from laconic.records import LedgerRecord, read_records
from laconic.store import write_store

EPOCHS = 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two parts that are as mixed as can be, so that nearly every row has to travel."""
    graph = load("sbm(nodes=4000, degree=10)")
    parts = np.random.default_rng(0).integers(0, 2, graph.num_nodes)
    write_store(graph, parts, tmp_path / "store")
    return tmp_path / "store"


def test_the_ledger_books_what_the_links_carried(store: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "laconic", "train", str(store), "--name", str(tmp_path / "run")]
    settings = ["--model", "sage(hidden=256, layers=3)", "--epochs", str(EPOCHS), "--set", "run.tensorboard=false"]
    strategy = ["--strategy", "exchange(edges=destination, reach=0)"]
    with Lab(hosts=2, link="none") as lab:
        result = lab.run([*command, *settings, *strategy], capture=True)
    assert result.exit_code == 0, [host.stderr for host in result.hosts]
    rows = read_records(tmp_path / "run" / "ledger.jsonl", LedgerRecord)
    assert {(row.rank, row.epoch) for row in rows} == {(rank, epoch) for rank in (0, 1) for epoch in range(EPOCHS + 1)}
    for host in result.hosts:
        booked = sum(row.num_bytes for row in rows if (row.rank, row.direction) == (host.host, "sent"))
        assert booked > 10e6, "the test needs more than what ranks say beside the rows"
        assert host.traffic.sent_once_bytes == pytest.approx(booked, rel=0.03)

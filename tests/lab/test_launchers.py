"""Ranks on several machines, started as users start them: torchrun, SLURM and Kubernetes, and what they get wrong."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from laconic.datasets import load
from laconic.lab import Lab
from laconic.lab.results import RunResult
from laconic.records import LedgerRecord, read_records
from laconic.store import write_store

# What a launcher of its own does not find: the lab's own variables but for the interface.
UNSET = "unset RANK GROUP_RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT"
TORCHRUN = f"{sys.executable} -m torch.distributed.run"
# A worker that is quicker to start than a training run. Two ranks that do not find each other give up soon.
JOIN = """
import sys, torch
from laconic.errors import CommunicationError
from laconic.launching.join import join_ranks
try:
    communicator = join_ranks(timeout=float(sys.argv[1]))
except CommunicationError as error:
    sys.exit(str(error))
with communicator.transport:
    total = communicator.all_reduce(torch.tensor(communicator.rank + 1))
    # In one piece: another rank of the host writes to the same place.
    print(f"rank {communicator.rank} of {communicator.num_ranks}: {int(total)}\\n", end="", flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    graph = load("sbm(nodes=80, degree=4)")
    write_store(graph, np.arange(graph.num_nodes) % 4, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def join(tmp_path: Path) -> str:
    """The command that joins the other ranks; it takes the seconds after which it gives up."""
    (tmp_path / "join.py").write_text(JOIN)
    return f"{sys.executable} {tmp_path / 'join.py'}"


def run(lab: Lab, script: str) -> RunResult:
    return lab.run(["sh", "-ec", script], capture=True, grace_seconds=20)


def said(result: RunResult) -> list[list[str]]:
    """What each host wrote to stdout, in the order of ranks."""
    assert result.exit_code == 0, [host.stderr for host in result.hosts]
    return [sorted((host.stdout or "").splitlines()) for host in result.hosts]


def test_torchrun_once_per_host_with_its_node_rank_and_two_ranks_each(store: Path, tmp_path: Path) -> None:
    with Lab(hosts=2, link="none") as lab:
        place = f"--nnodes 2 --nproc-per-node 2 --node-rank $node --master-addr {lab.addresses[0]} --master-port 29500"
        train = f"-m laconic train {store} --name {tmp_path / 'run'} --epochs 1 --set run.tensorboard=false"
        result = run(lab, f"node=$RANK; {UNSET}; {TORCHRUN} {place} {train}")
    assert result.exit_code == 0, [host.stderr for host in result.hosts]
    rows = read_records(tmp_path / "run" / "ledger.jsonl", LedgerRecord)
    assert {row.rank for row in rows if row.phase == "forward"} == {0, 1, 2, 3}


def test_torchrun_once_per_host_with_the_same_line_for_all(join: str) -> None:
    with Lab(hosts=2, link="none") as lab:
        meet = f"--nnodes 2 --rdzv-backend c10d --rdzv-id test --rdzv-endpoint {lab.addresses[0]}:29500"
        # The hosts of a lab have the name of the machine, which is none of their addresses: torchrun has to be told.
        own = f"--local-addr {lab.addresses[0].rpartition('.')[0]}.$((node + 1)) --rdzv-conf is_host=$((1 - node))"
        worker = join.removeprefix(f"{sys.executable} ")
        result = run(lab, f"node=$RANK; {UNSET}; {TORCHRUN} {meet} {own} {worker} 60")
    # The host that listens is not always the first.
    assert sorted(said(result)) == [["rank 0 of 2: 3"], ["rank 1 of 2: 3"]]


def test_slurm_with_two_tasks_on_each_host(join: str) -> None:
    with Lab(hosts=2, link="none") as lab:
        step = "SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE='2(x2)'"
        nodes = f"SLURM_NODEID=$node SLURM_STEP_NODELIST={','.join(lab.addresses)}"
        task = "SLURM_LOCALID=$local SLURM_PROCID=$((2 * node + local))"
        tasks = f'for local in 0 1; do {step} {nodes} {task} {join} 60 & pids="$pids $!"; done'
        result = run(lab, f"node=$RANK; {UNSET}; {tasks}; for pid in $pids; do wait $pid; done")
    assert said(result) == [[f"rank {rank} of 4: 10" for rank in pair] for pair in ((0, 1), (2, 3))]


def test_kubernetes_with_one_rank_in_each_pod(join: str) -> None:
    with Lab(hosts=2, link="none") as lab:
        # A PyTorchJob says no more than these four.
        pod = f"RANK=$node WORLD_SIZE=2 MASTER_ADDR={lab.addresses[0]} MASTER_PORT=23456"
        result = run(lab, f"node=$RANK; {UNSET}; {pod} {join} 60")
    assert said(result) == [["rank 0 of 2: 3"], ["rank 1 of 2: 3"]]


def test_two_hosts_that_both_claim_to_be_rank_0_are_told_so_at_once(join: str) -> None:
    with Lab(hosts=2, link="none") as lab:
        result = run(lab, f"export RANK=0; {join} 120")
    for host in result.hosts:
        assert host.exit_code == 1, host
        assert "Two processes were started as rank 0" in (host.stderr or "")
        assert "give each machine its own --node-rank" in (host.stderr or "")
        assert host.seconds < 100


def test_a_host_that_is_never_started_is_named_and_waited_for_in_words(join: str) -> None:
    with Lab(hosts=2, link="none") as lab:
        result = run(lab, f"if [ $RANK = 1 ]; then exit 0; fi; {join} 4")
        address = lab.addresses[0]
    told = " ".join((result.hosts[0].stderr or "").split())
    assert f"Rank 0 waits for rank 1 of 2 at {address} port" in told
    assert f"Rank 1 of 2 did not come to {address} port" in told
    assert f"rank 0 on {os.uname().nodename} did" in told

"""Ranks that `run_local_ranks` or torchrun starts: numbered, brought together, and all ended, whatever ends them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laconic.errors import ConfigError
from laconic.launching.local import run_local_ranks

# No torch in the ranks, unless a test is about it: they start in milliseconds.
PYTHON = [sys.executable, "-S", "-c"]

SUM = """
import json, os, sys
import torch
from laconic.launching.join import join_ranks
from laconic.launching.agreement import check_agreement
communicator = join_ranks(timeout=20)
with communicator.transport:
    check_agreement(communicator, {"seed": "1"})
    total = float(communicator.all_reduce(torch.tensor(communicator.rank + 1.0)))
with open(os.path.join(sys.argv[1], str(communicator.rank)), "w") as out:
    json.dump([communicator.num_ranks, total, torch.get_num_threads(), type(communicator.transport).__name__], out)
"""

SUM_IN_A_GROUP = """
import torch
import torch.distributed as dist
from laconic.launching.join import join_ranks
dist.init_process_group("gloo")
group = dist.group.WORLD
torch.set_num_threads(3)
communicator = join_ranks({}, timeout=20)
with communicator.transport:
    total = float(communicator.all_reduce(torch.tensor(communicator.rank + 1.0)))
assert total == 3.0
assert torch.get_num_threads() == 3
assert dist.group.WORLD is group
dist.barrier()
dist.destroy_process_group()
"""

LAUNCHER = """
import signal, sys
# A shell that runs the tests in the background has them ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
from laconic.launching.local import run_local_ranks
command = [sys.executable, "-S", "-c", *sys.argv[1:3]]
code, sys.argv[1:], copied = sys.argv[1], sys.argv[2:], sys.argv.pop() == "copies"
def run(): exec(code, {})
sys.exit(run_local_ranks(command, 2, loaded=run if copied else None, grace_seconds=float(sys.argv[2])))
"""

# Ranks that are commands, and ranks that are copies of their launcher.
EITHER = pytest.mark.parametrize("kind", ["commands", "copies"])

# Leaves its number where the test finds it, then waits for what comes.
STAYS = """
import os, signal, sys, time
def note(number, frame):
    with open(os.path.join(sys.argv[1], os.environ["RANK"] + ".signals"), "a") as out:
        out.write(f"{number} ")
    if os.environ["RANK"] != STUBBORN:
        sys.exit(128 + number)
signal.signal(signal.SIGTERM, note)
signal.signal(signal.SIGINT, note)
name = os.path.join(sys.argv[1], os.environ["RANK"] + ".pid")
with open(name + ".part", "w") as out:
    out.write(str(os.getpid()))
os.rename(name + ".part", name)
end = time.monotonic() + 30
while time.monotonic() < end:
    time.sleep(0.1)
"""


@pytest.fixture
def environment(monkeypatch):
    """The test run itself may have been told how many threads to use."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids_in(folder: Path, num_ranks: int = 2) -> list[int]:
    files = [folder / f"{rank}.pid" for rank in range(num_ranks)]
    wait_until(lambda: all(file.exists() for file in files))
    return [int(file.read_text()) for file in files]


def test_every_rank_finds_the_variables_of_torchrun_and_rank_0_writes_as_if_alone(tmp_path, capfd, environment):
    tell = (
        "import json, os, sys; print('rank', os.environ['RANK'], sys.stdin.read()); "
        "json.dump(dict(os.environ), open(os.path.join(sys.argv[1], os.environ['RANK']), 'w'))"
    )
    extra = {"TORCHELASTIC_RUN_ID": "of another", "COLOUR": "blue"}
    assert run_local_ranks([*PYTHON, tell, str(tmp_path)], 3, environment=extra) == 0
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    for rank, variables in enumerate(told):
        assert variables["RANK"] == variables["LOCAL_RANK"] == str(rank)
        assert variables["WORLD_SIZE"] == variables["LOCAL_WORLD_SIZE"] == "3"
        assert variables["MASTER_ADDR"] == "127.0.0.1"
        assert variables["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 3))
        assert variables["COLOUR"] == "blue"
        assert "TORCHELASTIC_RUN_ID" not in variables
    assert len({variables["MASTER_PORT"] for variables in told}) == 1
    assert capfd.readouterr() == ("rank 0 \n", "")


def output_of_ranks(err: str) -> list[str]:
    """Without log lines: tests of the command may have sent those to stderr for the rest of the process."""
    return [line for line in err.splitlines() if line.startswith("rank ")]


def test_the_rank_that_fails_is_shown_and_its_code_returned(capfd, caplog):
    fail = (
        "import os, sys\nfor line in range(50): print('line', line)\n"
        "if os.environ['RANK'] == '1': sys.exit('the disk is full')"
    )
    assert run_local_ranks([*PYTHON, fail], 3) == 1
    out, err = capfd.readouterr()
    assert out == "".join(f"line {line}\n" for line in range(50))
    shown = output_of_ranks(err)
    assert len(shown) == 40
    assert shown[-2:] == ["rank 1 | line 49", "rank 1 | the disk is full"]
    assert "Rank 1 failed with exit code 1" in caplog.text


def test_a_message_that_ranks_leave_is_told_once_and_the_rest_of_what_they_wrote_is_shown_where_they_differ(
    capfd, caplog
):
    leave = (
        "import os, sys\nprint('line of', os.environ['RANK'])\n"
        "message = 'the disk is full' if os.environ['RANK'] == '2' else 'no such file'\n"
        "open(os.environ['LACONIC_LAST_WORDS'], 'w').write(message)\nsys.exit(2)"
    )
    told: list[str] = []
    assert run_local_ranks([*PYTHON, leave], 3, tell=told.append) == 2
    out, err = capfd.readouterr()
    assert told == ["no such file", "Rank 2: the disk is full"]
    assert out == "line of 0\n"
    assert output_of_ranks(err) == ["rank 2 | line of 2"]
    assert "failed with exit code" not in caplog.text


def test_a_rank_that_is_killed_gives_137_and_the_others_are_ended_after_their_grace(tmp_path, capfd, caplog):
    die = (
        "import os, signal, sys, time\n"
        "if os.environ['RANK'] == '2': print('about to go'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "open(os.path.join(sys.argv[1], os.environ['RANK']), 'w').write(str(os.getpid()))\n"
        "time.sleep(30)"
    )
    begin = time.monotonic()
    assert run_local_ranks([*PYTHON, die, str(tmp_path)], 3, grace_seconds=0.5) == 137
    assert time.monotonic() - begin < 8
    assert not any(is_running(int(file.read_text())) for file in tmp_path.iterdir())
    assert output_of_ranks(capfd.readouterr().err) == ["rank 2 | about to go"]
    assert "Rank 2 was killed" in caplog.text
    assert "The others have 500 ms" in caplog.text


def test_children_that_a_rank_leaves_are_ended_too(tmp_path):
    leave = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(30)'])\n"
        "open(os.path.join(sys.argv[1], os.environ['RANK']), 'w').write(str(child.pid))\n"
    )
    assert run_local_ranks([*PYTHON, leave, str(tmp_path)], 2) == 0
    wait_until(lambda: not any(is_running(int(file.read_text())) for file in tmp_path.iterdir()))


@pytest.mark.parametrize(("number", "stubborn"), [(signal.SIGTERM, "none"), (signal.SIGINT, "1")])
@EITHER
def test_a_signal_reaches_every_rank_once_and_one_that_stays_is_killed(tmp_path, number, stubborn, kind):
    stays = STAYS.replace("STUBBORN", repr(stubborn))
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, stays, str(tmp_path), "0.5", kind], stderr=subprocess.PIPE
    )
    try:
        pids = pids_in(tmp_path)
        launcher.send_signal(number)
        _, err = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
        launcher.wait()
    assert launcher.returncode == 128 + number
    assert err == b""
    assert not any(is_running(pid) for pid in pids)
    assert [(tmp_path / f"{rank}.signals").read_text() for rank in range(2)] == [f"{number.value} "] * 2


@EITHER
def test_no_rank_outlives_a_launcher_that_is_killed(tmp_path, kind):
    stays = STAYS.replace("STUBBORN", "'none'")
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, stays, str(tmp_path), "1", kind])
    try:
        pids = pids_in(tmp_path)
    finally:
        launcher.kill()
        launcher.wait()
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_what_cannot_be_started_is_refused():
    with pytest.raises(ConfigError, match="at least 1 rank, not 0"):
        run_local_ranks(PYTHON, 0)
    with pytest.raises(ConfigError, match="no command to run"):
        run_local_ranks([], 2)
    with pytest.raises(ConfigError, match="no command 'not-there' on PATH"):
        run_local_ranks(["not-there"], 2)


def sums(folder: Path) -> list[list]:
    return [json.loads(file.read_text()) for file in sorted(folder.iterdir())]


def test_ranks_that_were_started_here_join(tmp_path, environment):
    assert run_local_ranks([sys.executable, "-c", SUM, str(tmp_path)], 2) == 0
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert sums(tmp_path) == [[2, 3.0, threads, "TorchTransport"]] * 2


def test_a_process_group_that_exists_is_used_and_torch_finds_the_store_of_the_launcher_by_itself():
    assert run_local_ranks([sys.executable, "-c", SUM_IN_A_GROUP], 2) == 0


def test_ranks_under_torchrun_join(tmp_path):
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    results = tmp_path / "results"
    results.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run([*torchrun, str(script), str(results)], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sums(results) == [[2, 3.0, int(os.environ.get("OMP_NUM_THREADS", "1")), "TorchTransport"]] * 2


def test_a_process_alone_talks_to_itself_and_keeps_its_threads(tmp_path):
    import torch

    from laconic.launching.join import join_ranks

    threads = torch.get_num_threads()
    communicator = join_ranks({})
    with communicator.transport:
        assert communicator.num_ranks == 1
        assert float(communicator.all_reduce(torch.ones(()))) == 1.0
    assert torch.get_num_threads() == threads


DISAGREE_THEN_KILL_RANK_0 = """
import os, signal, sys
import torch
from laconic.errors import ConfigError
from laconic.launching.agreement import check_agreement
from laconic.launching.join import join_ranks
communicator = join_ranks(timeout=20)
with communicator.transport:
    try:
        check_agreement(communicator, {"training.lr": "0.01" if communicator.rank == 0 else "0.02"})
    except ConfigError as error:
        print(error, file=sys.stderr)
    if communicator.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    communicator.all_reduce(torch.ones(3))
"""


def test_ranks_hear_that_they_disagree_and_who_left_even_if_that_is_rank_0(capfd):
    assert run_local_ranks([sys.executable, "-c", DISAGREE_THEN_KILL_RANK_0], 2) == 137
    err = capfd.readouterr().err
    told = "Ranks disagree: training.lr is 0.01 on rank 0 and 0.02 on rank 1. Start all ranks with the same settings"
    assert err.startswith(told)
    assert f"\nrank 1 | {told}" in err
    # Only because the store is not kept by rank 0; torch marks a traceback too.
    assert "rank 1 | [rank1]: laconic.errors.RankFailedError" in err
    assert "rank 0 left without a message" in err

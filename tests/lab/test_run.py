import os
import sys
import time
from collections.abc import Callable

import pytest

from laconic.errors import ConfigError
from laconic.lab import Lab, LinkLoss
from laconic.lab.results import HostResult, RunResult, Traffic


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


def test_each_host_finds_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with Lab(hosts=2, link="none") as lab:
        result = lab.run(["env"], environment={"EXTRA": "a b"}, capture=True)
        for host in result.hosts:
            found = dict(line.split("=", 1) for line in (host.stdout or "").splitlines() if "=" in line)
            wanted = {
                "RANK": str(host.host),
                "GROUP_RANK": str(host.host),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": lab.addresses[0],
                "GLOO_SOCKET_IFNAME": lab.interfaces[host.host],
                "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2)),
                "EXTRA": "a b",
            }
            assert wanted.items() <= found.items()
            assert 1024 < int(found["MASTER_PORT"]) < 65536
            assert "TORCHELASTIC_USE_AGENT_STORE" not in found


def test_what_the_user_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with Lab(hosts=1, link="none") as lab:
        script = shell("echo $OMP_NUM_THREADS $MASTER_PORT")
        assert lab.run(script, environment={"MASTER_PORT": "1234"}, capture=True).hosts[0].stdout == "7 1234\n"


def test_lines_come_with_host_and_stream_as_they_are_written() -> None:
    came: list[tuple[int, str, str, float]] = []
    with Lab(hosts=2, link="none") as lab:
        result = lab.run(
            shell("echo out $RANK; echo err $RANK >&2; sleep 0.5; printf '10%%\\r100%%\\r\\nno end'"),
            on_output=lambda host, stream, line: came.append((host, stream, line, time.monotonic())),
        )
    assert result.hosts[0].stdout is None
    for host in (0, 1):
        lines = [(stream, line) for number, stream, line, _ in came if number == host]
        assert [line for stream, line in lines if stream == "stdout"] == [f"out {host}", "100%", "no end"]
        assert [line for stream, line in lines if stream == "stderr"] == [f"err {host}"]
    # The first line did not wait for the last.
    assert came[-1][3] - came[0][3] > 0.3


def test_the_run_ends_with_the_code_of_the_first_host_that_failed() -> None:
    with Lab(hosts=3, link="none") as lab:
        # Host 2 fails because host 1 did; host 0 does not notice, and is ended.
        started = time.monotonic()
        result = lab.run(shell("case $RANK in 0) sleep 100;; 1) exit 7;; 2) sleep 0.2; exit 9;; esac"), grace_seconds=2)
    assert [host.exit_code for host in result.hosts] == [143, 7, 9]
    assert [host.was_ended for host in result.hosts] == [True, False, False]
    assert result.first_failed is result.hosts[1]
    assert result.exit_code == 7
    assert time.monotonic() - started >= 2


def test_a_host_that_does_not_heed_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laconic.processes.watched._TERM_SECONDS", 0.3)
    with Lab(hosts=2, link="none") as lab:
        result = lab.run(shell("trap '' TERM; [ $RANK = 1 ] && exit 3; while :; do sleep 0.1; done"), grace_seconds=0.2)
    assert [host.exit_code for host in result.hosts] == [137, 3]


def test_a_process_that_a_signal_ended_has_the_code_that_a_shell_gives() -> None:
    with Lab(hosts=1, link="none") as lab:
        assert lab.run(shell("kill -9 $$")).exit_code == 137


@pytest.mark.parametrize(("seconds", "first"), [((2.0, 1.0), 1), ((1.0, 2.0), 0)])
def test_a_host_that_the_lab_ended_is_never_the_first_to_fail(seconds: tuple[float, float], first: int) -> None:
    hosts = [HostResult(n, 1, seconds[n], False, Traffic()) for n in range(2)]
    ended = HostResult(2, 143, 0.5, True, Traffic())
    failed = RunResult((*hosts, ended)).first_failed
    assert failed is hosts[first]


def test_children_that_a_command_leaves_end_with_it(wait_for_end: Callable[[list[int]], None]) -> None:
    with Lab(hosts=1, link="none") as lab:
        result = lab.run(shell("sleep 300 & echo $!"), capture=True)
        wait_for_end([int(result.hosts[0].stdout or "")])
        escaped = lab.run(shell("setsid sleep 300 >/dev/null 2>&1 & echo $!; sleep 0.3"), capture=True)
    # Even one that left its group ends with the lab.
    wait_for_end([int(escaped.hosts[0].stdout or "")])


def test_a_host_loses_its_link_when_asked_and_has_it_again_in_the_next_run() -> None:
    code = """
import os, socket, sys, time
from pathlib import Path
rank, want = int(os.environ["RANK"]), sys.argv[1]
carrier = Path("/sys/class/net") / os.environ["GLOO_SOCKET_IFNAME"] / "carrier"
server = socket.create_server(("", 4002)) if rank == 0 else None
if rank == 1:
    deadline = time.monotonic() + 30
    while carrier.read_text().strip() != want and time.monotonic() < deadline:
        time.sleep(0.02)
print(carrier.read_text().strip())
if rank == 1:
    deadline = time.monotonic() + (1 if want == "0" else 30)
    while True:
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], 4002), timeout=1)
            print("reached")
            break
        except OSError:
            if time.monotonic() > deadline:
                print("not reached")
                break
            time.sleep(0.02)
else:
    server.settimeout(3 if want == "0" else 30)
    try:
        server.accept()
    except TimeoutError:
        pass
"""
    command = [sys.executable, "-I", "-S", "-c", code]
    with Lab(hosts=2, link="1gbit") as lab:
        lost = lab.run([*command, "0"], losses=[LinkLoss(host=1, after_seconds=0.2)], capture=True)
        assert [host.stdout for host in lost.hosts] == ["1\n", "0\nnot reached\n"], lost
        whole = lab.run([*command, "1"], capture=True)
        assert [host.stdout for host in whole.hosts] == ["1\n", "1\nreached\n"], whole


def test_an_error_of_whoever_takes_the_output_ends_the_hosts_and_comes_through(
    wait_for_end: Callable[[list[int]], None],
) -> None:
    pids: list[int] = []

    def refuse(host: int, stream: str, line: str) -> None:
        pids.append(int(line))
        raise BrokenPipeError("no more")

    with Lab(hosts=1, link="none") as lab, pytest.raises(BrokenPipeError):
        lab.run(shell("echo $$; sleep 300"), on_output=refuse)
    wait_for_end(pids)


def test_a_lab_serves_only_while_it_is_up_and_only_commands_that_exist() -> None:
    lab = Lab(hosts=1, link="none")
    with pytest.raises(ConfigError, match="not up"):
        lab.run(["true"])
    with lab:
        with pytest.raises(ConfigError, match="no command 'no-such-thing'"):
            lab.run(["no-such-thing"])
        with pytest.raises(ConfigError, match="no command to run"):
            lab.run([])
        with pytest.raises(ConfigError, match="Host 1 cannot lose"):
            lab.run(["true"], losses=[LinkLoss(1, 0.0)])

"""What each host runs for exchange.py: contenders in processes of their own that take turns.

    laconic lab --hosts 4 --link 1gbit -- python benchmarks/exchange_turns.py PLAN

PLAN is JSON: for each contender's name, the folder of a tree and the arguments of that tree's
benchmarks/exchange_rank.py. So a contender may be of another commit: program and library are that
tree's. The first turn of a contender is its start and its setup before the first epoch. Each later
turn is one epoch over the network, with one that moves nothing behind it where the rank program has
one. The order of contenders changes from round to round. A turn is over when it is over on all
hosts, so contenders never compute, or send, at the same time.

Each host prints one line of JSON. For each contender it has the traffic of the host's interface in
its turns and, on host 0, the findings of all ranks.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TURN_IS_OVER = "turn is over"
AS_CONTENDER = "--as-contender"


class Contender:
    """A process that takes turns; it is started in its first one."""

    def __init__(self, number: int, tree: str, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, __file__, AS_CONTENDER, tree, *arguments]
        # Its ranks meet at a port of their own.
        self._environment = {**os.environ, "MASTER_PORT": str(int(os.environ["MASTER_PORT"]) + number)}
        self._process: subprocess.Popen | None = None
        self._last_line = ""
        self._traffic = dict.fromkeys(counters(), 0)
        self.is_over = False

    def take_turn(self) -> None:
        before = counters()
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdin=pipe, stdout=pipe, text=True, bufsize=1
            )
        else:
            self._process.stdin.write("go\n")
        self._follow(self._process)
        for name, value in counters().items():
            self._traffic[name] += value - before[name]

    def _follow(self, process: subprocess.Popen) -> None:
        for line in process.stdout:
            if line.rstrip() == TURN_IS_OVER:
                return
            self._last_line = line
        self.is_over = True
        if process.wait():
            sys.exit(process.returncode)

    def findings(self) -> dict[str, object]:
        return {"ranks": json.loads(self._last_line) if self._last_line else None, "traffic": self._traffic}


def counters() -> dict[str, int]:
    """Returns what this host's interface has moved up to now, as fields of `laconic.lab.Traffic`."""
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    lines = (line.split(":", 1) for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    # Eight fields of what was received, then eight of what was sent; bytes come first.
    fields = {name.strip(): values.split() for name, values in lines}[interface]
    tcp = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Tcp:")]
    names, values = tcp
    return {
        "received_bytes": int(fields[0]),
        "sent_bytes": int(fields[8]),
        "repeated_packets": int(values[names.index("RetransSegs")]),
    }


def run_contender(tree: str, *arguments: str) -> None:
    """Runs the rank program of a tree, which waits for its turn before each epoch over the network."""
    sys.path[:1] = [f"{tree}/benchmarks", f"{tree}/src"]
    import exchange_rank

    train = exchange_rank.Training.train

    def train_in_turn(training: exchange_rank.Training) -> float:
        # The other ranks have received all that was sent to them, too.
        training.communicator.transport.barrier()
        print(TURN_IS_OVER, flush=True)
        if not sys.stdin.readline():
            sys.exit("The process that gives turns has ended.")
        return train(training)

    exchange_rank.Training.train = train_in_turn
    exchange_rank.main(*arguments)


def main(plan: str) -> None:
    contenders = {
        name: Contender(number, *tree_and_arguments)
        for number, (name, tree_and_arguments) in enumerate(json.loads(plan).items())
    }
    names, turn = list(contenders), 0
    while not all(contender.is_over for contender in contenders.values()):
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
            if not contenders[name].is_over:
                contenders[name].take_turn()
        turn += 1
    print(json.dumps({name: contender.findings() for name, contender in contenders.items()}))


if __name__ == "__main__":
    if sys.argv[1] == AS_CONTENDER:
        run_contender(*sys.argv[2:])
    else:
        main(sys.argv[1])

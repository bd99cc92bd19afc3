"""The one place that calls `ip` and `tc`. A call that fails is an error that names the command."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Literal

from laconic.errors import LaconicError

Tool = Literal["ip", "tc"]


class LabError(LaconicError):
    """A lab that cannot be built here, or that the system would not change as asked."""


def find_tool(tool: Tool) -> str | None:
    """Returns the path of `ip` or `tc`, looked for also where only root's PATH leads."""
    return shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def call(tool: Tool, *arguments: str, namespace: str | None = None) -> str:
    """Runs one command and returns what it printed."""
    done = _run([tool, *_inside(namespace), *arguments])
    if done.returncode != 0:
        raise _failure(" ".join([tool, *_inside(namespace), *arguments]), done.stderr)
    return done.stdout


def call_all(tool: Tool, lines: Sequence[str], *, namespace: str | None = None, keep_going: bool = False) -> None:
    """Runs several commands, a line each, in one process; with `keep_going` also after one that failed."""
    force = ["-force"] if keep_going else []
    done = _run([tool, *force, *_inside(namespace), "-batch", "-"], "".join(f"{line}\n" for line in lines))
    if done.returncode != 0:
        failed = re.search(r"Command failed -:(\d+)", done.stderr)
        line = lines[int(failed[1]) - 1] if failed else "; ".join(lines)
        reason = re.sub(r"Command failed -:\d+", "", done.stderr)
        raise _failure(" ".join([tool, *_inside(namespace), line]), reason)


def _inside(namespace: str | None) -> list[str]:
    return [] if namespace is None else ["-n", namespace]


def _run(command: list[str], text: str | None = None) -> "subprocess.CompletedProcess[str]":
    tool: Tool = "ip" if command[0] == "ip" else "tc"
    path = find_tool(tool)
    if path is None:
        raise LabError(f"The command {tool} is not here. Install iproute2: apt install iproute2, dnf install iproute.")
    # A session of its own: Ctrl-C in a terminal must not reach it in the middle of a change.
    return subprocess.run(
        [path, *command[1:]],
        input=text or "",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )


def _failure(command: str, reason: str) -> LabError:
    said = "; ".join(line.strip() for line in reason.splitlines() if line.strip()) or "it gave no reason"
    return LabError(
        f"The command `{command}` failed: {said}. The lab needs root and a kernel with network namespaces, veth, "
        f"bridge and tbf; see docs/lab.md."
    )

"""launch: a Python function on several ranks of this machine, from a script or a notebook.

    def train(source):
        session = laconic.join(source)
        ...
        return session.evaluate()

    if __name__ == "__main__":
        scores, _ = laconic.launch(train, "cora.npz", ranks=2)

A function of a file runs in processes, which import it from there. One that no new process can import (of a notebook
cell, typed at a prompt, nested in another, a lambda) runs in threads of this process: nothing has to be sent, and all
numbers are the same, but the threads share Python's interpreter lock, torch's random generator and whatever else there
is one of in a process. There, seed and build a model before `launch`, and copy it in the function.
"""

import inspect
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import torch

from laconic.comm import Transport
from laconic.comm.transport import DEFAULT_TIMEOUT_SECONDS, run_ranks
from laconic.errors import ConfigError, RankFailedError
from laconic.launching.environment import rank_environment
from laconic.launching.join import joining_by, transport_of_thread
from laconic.launching.last_words import tell_once
from laconic.launching.local import run_local_ranks
from laconic.launching.values import read_value, write_value
from laconic.processes import threads_per_rank

Result = TypeVar("Result")

_log = logging.getLogger(__name__)
# For the ranks that are left when one has failed; most end at once, as they hear of it.
_GRACE_SECONDS = 10.0


def launch(
    function: Callable[..., Result],
    *arguments: Any,
    ranks: int = 2,
    how: Literal["auto", "processes", "threads"] = "auto",
) -> list[Result]:
    """Calls `function(*arguments)` on each of `ranks` ranks of this machine; returns their results, in rank order.

    In the function `laconic.join` and `laconic.start` find the other ranks, as under torchrun. A rank that fails ends
    the others, and its message is raised here: in a RankFailedError, or by threads as the exception itself. Ctrl-C ends
    them all.

    Args:
        function: what each rank does.
        arguments: what it is called with. For processes, and so for results: numbers, texts, paths, lists, tuples,
            dicts, tensors, arrays, and what Laconic returns (predictions, embeddings, a summary).
        ranks: how many; one rank is a plain call.
        how: "processes" or "threads"; "auto" is processes where they can import the function.
    """
    _check(ranks, how)
    if ranks == 1:
        return [function(*arguments)]
    home = _find_home(function)
    if how == "processes" and home is None:
        raise ConfigError(
            f"{_name(function)} cannot be imported by another process: it is defined in a notebook or at a prompt, or "
            f"inside another function. Write it at the top level of a file, or use how='threads'."
        )
    if home is None or how == "threads":
        _log.debug("%d ranks as threads.", ranks)
        return _in_threads(function, arguments, ranks)
    return _in_processes(home, arguments, ranks)


def _check(ranks: int, how: str) -> None:
    if how not in ("auto", "processes", "threads"):
        raise ConfigError(f"how should be auto, processes or threads; got {how!r}.")
    if ranks < 1:
        raise ConfigError(f"ranks should be 1 or more; got {ranks}.")
    here = rank_environment()
    if here is not None or transport_of_thread() is not None:
        raise ConfigError(
            "laconic.launch starts ranks, but this is one of them already. In a script, put the call below "
            '`if __name__ == "__main__":`, so that ranks can import the script; under torchrun, call the function.'
        )


def _in_threads(function: Callable[..., Result], arguments: tuple[Any, ...], ranks: int) -> list[Result]:
    before = torch.get_num_threads()
    share = threads_per_rank(ranks)

    def run(transport: Transport) -> Result:
        # A thread's first question takes over the number that any thread set last, even after one of its own was set.
        torch.get_num_threads()
        torch.set_num_threads(share)
        with joining_by(transport):
            return function(*arguments)

    try:
        return run_ranks(ranks, run, timeout=DEFAULT_TIMEOUT_SECONDS)
    finally:
        torch.set_num_threads(before)


def _in_processes(home: dict[str, str], arguments: tuple[Any, ...], ranks: int) -> list[Any]:
    with TemporaryDirectory(prefix="laconic-launch-") as name:
        folder = Path(name)
        try:
            write_value(list(arguments), folder / "arguments")
        except ConfigError as error:
            raise ConfigError(f"{error} Give the name or the path of the data, or use how='threads'.") from error
        call = {**home, "path": [entry for entry in sys.path if isinstance(entry, str)], "argv": sys.argv}
        (folder / "call.json").write_text(json.dumps(call), encoding="utf-8")
        # Laconic is imported as here; then the worker takes over all of sys.path.
        package = Path(__file__).parents[2]
        path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
        code = run_local_ranks(
            [sys.executable, "-P", "-m", f"{__package__}.worker", name],
            ranks,
            environment={"PYTHONPATH": path},
            grace_seconds=_GRACE_SECONDS,
        )
        if code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        if code:
            raise _failure(folder, code)
        if len(list(folder.glob("result-*.json"))) < ranks:
            raise RankFailedError("A rank ended, by sys.exit or os._exit, before the function returned.")
        return [read_value(folder / f"result-{rank}") for rank in range(ranks)]


def _failure(folder: Path, code: int) -> RankFailedError:
    """Returns what the ranks say that failed by themselves; where none did, what the others say."""
    files = {int(file.stem.partition("-")[2]): file for file in folder.glob("failure-*.json")}
    told = {rank: json.loads(file.read_text(encoding="utf-8")) for rank, file in sorted(files.items())}
    first = {rank: each for rank, each in told.items() if each["is_own"]} or told
    messages = tell_once({rank: each["message"] for rank, each in first.items()})
    text = "\n".join(messages) or f"A rank ended with exit code {code}, and left neither a result nor a message."
    return RankFailedError(text, rank=next(iter(first), None))


def _find_home(function: Callable[..., Any]) -> dict[str, str] | None:
    """Returns where a new process finds the function: a module or a file, and its name there; None if nowhere."""
    if not inspect.isfunction(function) or "<" in function.__qualname__:
        return None
    name, module = function.__qualname__, sys.modules.get(function.__module__)
    if module is None or _look_up(module, name) is not function:
        return None
    if function.__module__ != "__main__":
        return {"module": function.__module__, "name": name}
    specification = getattr(module, "__spec__", None)
    if specification is not None:
        # python -m package.module
        return {"module": specification.name, "name": name}
    file = getattr(module, "__file__", None)
    # A notebook's __main__ may have a file too, which its cells are not from.
    if file is None or not os.path.isfile(file) or not os.path.isfile(function.__code__.co_filename):
        return None
    is_from_file = os.path.samefile(function.__code__.co_filename, file)
    return {"file": os.path.abspath(file), "name": name} if is_from_file else None


def _look_up(module: object, name: str) -> object:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))

"""What can go wrong for a user. Each message says what was expected, what came, and what to do.

The command prints the message of a `LaconicError` and ends with exit code 2; any other exception is a fault of ours.
"""

import traceback
from pathlib import Path


class LaconicError(Exception):
    """Base of all errors that a user can mend."""


class ConfigError(LaconicError):
    """A setting, a name or a combination of them that cannot work."""


class DataError(LaconicError):
    """A graph or a data file that is not what it should be."""


class StoreError(LaconicError):
    """A store on disk that is missing, incomplete, altered or of another format."""


class CheckpointError(LaconicError):
    """A run folder or checkpoint that cannot be written or continued from."""


class UnsupportedModelError(LaconicError):
    """A model that the chosen strategy cannot train."""


class DivergedError(LaconicError):
    """A loss or a weight that became infinite or NaN while training."""


class RanksDifferError(LaconicError):
    """Ranks that do not hold the same model any more."""


class CommunicationError(LaconicError):
    """Ranks that do not find each other, wait in vain, or do not agree on what they say."""


class RankFailedError(CommunicationError):
    """Another rank has failed, and this one cannot go on without it.

    Args:
        message: what happened, naming the rank.
        rank: the rank that failed; None where it cannot be told which one did.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


def describe_exception(error: BaseException, below: Path | None = None) -> str:
    """Returns an exception in a line: its kind, its message, and the line of code that it came from.

    Args:
        below: a folder with the user's code; a line there is named where the exception passed one.
    """
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, SyntaxError):
        return f"{said} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if below is not None and Path(frame.filename).is_relative_to(below)] or frames[-1:]
    return f"{said} ({own[-1].filename}, line {own[-1].lineno})" if own else said

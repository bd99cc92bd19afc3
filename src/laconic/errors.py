"""What can go wrong for a user. Each message says what was expected, what came, and what to do.

The command prints the message of a `LaconicError` and ends with exit code 2; any other exception is a fault of ours.
"""


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

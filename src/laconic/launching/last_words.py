"""What a rank says before it fails, handed to whoever started it, who tells once what several of them say.

Each rank finds in LACONIC_LAST_WORDS the file to leave its message in; under torchrun or SLURM there is none.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from laconic.ranks import name_ranks

_VARIABLE = "LACONIC_LAST_WORDS"


def leave_last_words(message: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Leaves the message of this rank; returns False where nobody would tell it."""
    path = environ.get(_VARIABLE)
    if not path:
        return False
    try:
        Path(path).write_text(message, encoding="utf-8")
    except OSError:
        return False
    return True


def last_words_variable(folder: Path, rank: int) -> dict[str, str]:
    """Returns the variable by which a rank knows where to leave its message."""
    return {_VARIABLE: str(folder / str(rank))}


def read_last_words(folder: Path) -> dict[int, str]:
    """Returns the messages that were left, by rank."""
    return {int(file.name): file.read_text(encoding="utf-8") for file in sorted(folder.iterdir())}


def tell_once(words: Mapping[int, str]) -> list[str]:
    """Returns what ranks said, each thing once; with the ranks named where rank 0 is not among them.

    A message that repeats that of another ("Rank 1 failed: ...") adds nothing to it.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, message in sorted(words.items()):
        ranks_of.setdefault(message, []).append(rank)
    own = [message for message in ranks_of if not any(other in message for other in ranks_of if other != message)]
    return [
        message if 0 in ranks_of[message] else f"{name_ranks(ranks_of[message]).capitalize()}: {message}"
        for message in own
    ]

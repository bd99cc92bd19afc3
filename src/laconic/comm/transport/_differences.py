"""What ranks hear when they do different things: one evaluates alone, or leaves the training loop early."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from laconic.ranks import name_ranks

_ADVICE = (
    "All ranks have to call the model, session.loss, backward and session.evaluate together, equally often and in the "
    "same order; `if session.rank == 0:` is for printing and saving only."
)


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """An operation as one rank asked for it.

    Args:
        words: the call, such as "all_reduce, sum, of float32 (3,)".
        purpose: what it is for, such as "the loss of a training step"; empty where nobody said.
        alike: what has to be the same on all ranks beside the purpose.
    """

    words: str
    purpose: str = ""
    alike: str = ""

    def __str__(self) -> str:
        return f"{self.purpose}: {self.words}" if self.purpose else self.words

    def fits(self, other: "Asked") -> bool:
        """Whether two ranks that ask for this and for `other` ask for the same operation."""
        return (self.purpose, self.alike) == (other.purpose, other.alike)


NOTHING = Asked("")


def tell_difference(number: int, asked: Mapping[int, Asked]) -> str:
    """Returns the message for ranks that do not fit together.

    Args:
        number: of the operation.
        asked: by rank, as far as it is known.
    """
    by_purpose: dict[str, list[int]] = {}
    for rank in sorted(asked):
        by_purpose.setdefault(asked[rank].purpose, []).append(rank)
    if len(by_purpose) == 1:
        listed = "; ".join(f"rank {rank}: {asked[rank].words}" for rank in sorted(asked))
        return f"Ranks disagree at operation {number}: {listed}."
    sides = "; ".join(
        f"{name_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'} at {purpose or 'another call'} "
        f"({asked[ranks[0]].words})"
        for purpose, ranks in by_purpose.items()
    )
    return f"Ranks do different things at operation {number}: {sides}. {_ADVICE}"


def tell_left(ranks: Sequence[int], number: int, asked: Asked) -> str:
    """Returns the message for ranks that have left while this one is at operation `number`."""
    has = "have" if len(ranks) > 1 else "has"
    return (
        f"{name_ranks(ranks).capitalize()} {has} left, while this rank is at operation {number} ({asked}): the "
        f"training loop there ended sooner, or the process did. {_ADVICE} Look at the output of {name_ranks(ranks)}."
    )

"""Whether all ranks were started with the same settings, data and code. Found at the start, not in the results.

check_agreement(communicator, {"laconic": __version__, "training.lr": "0.01", "store": fingerprint})
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from laconic.comm import Communicator
from laconic.errors import ConfigError, StoreError
from laconic.ranks import name_ranks

_MOST_KEYS = 5
_MOST_VALUES = 4
_LONGEST_VALUE = 60
# Of what long values have in common, so much is shown before the first difference.
_LEAD = 20


_REMEDY = "Start all ranks with the same settings, the same data and the same version of the code."


def check_agreement(communicator: Communicator, facts: Mapping[str, str], *, remedy: str = _REMEDY) -> None:
    """Returns if all ranks give the same facts; otherwise raises a ConfigError on all of them that names what differs.

    Traffic: an all_gather of 32 bytes, in phase "setup"; the facts themselves only if they differ.

    Args:
        communicator: how the ranks talk.
        facts: what must be alike, by names that a user knows.
        remedy: what to do where they are not.
    """
    text = json.dumps(dict(facts), sort_keys=True).encode()
    with communicator.ledger.phase("setup"):
        digests = communicator.all_gather(_bytes(hashlib.sha256(text).digest(), communicator))
        if bool((digests == digests[0]).all()):
            return
        texts = _exchange(text, communicator)
    raise ConfigError(describe_difference([json.loads(each) for each in texts], remedy))


def check_all_ready(communicator: Communicator, problem: str | None) -> None:
    """Returns if no rank has a problem; otherwise raises a StoreError on all of them that says who lacks what.

    Traffic: an all_gather of 8 bytes, in phase "setup"; the problems themselves only if there are some.

    Args:
        problem: what this rank lacks, in a sentence.
    """
    with communicator.ledger.phase("setup"):
        text = (problem or "").encode()
        lengths = communicator.all_gather(torch.tensor([len(text)], device=communicator.transport.device)).flatten()
        if not bool(lengths.any()):
            return
        problems = [each.decode() for each in _exchange(text, communicator)]
    told = [f"{name_ranks([rank])}: {each}" for rank, each in enumerate(problems) if each]
    rest = f" ({len(told) - _MOST_VALUES} more ranks lack something.)" if len(told) > _MOST_VALUES else ""
    raise StoreError(f"Not every rank can read what it needs. {' '.join(told[:_MOST_VALUES])}{rest}")


def describe_difference(facts: Sequence[Mapping[str, str]], remedy: str = _REMEDY) -> str:
    """Returns what differs between the facts of ranks, given in rank order."""
    keys = sorted({key for each in facts for key in each})
    differing = [key for key in keys if len({each.get(key) for each in facts}) > 1]
    told = [_describe_key(key, [each.get(key) for each in facts]) for key in differing[:_MOST_KEYS]]
    if len(differing) > _MOST_KEYS:
        told.append(f"{len(differing) - _MOST_KEYS} more differ")
    return f"Ranks disagree: {'; '.join(told)}. {remedy}"


def _exchange(text: bytes, communicator: Communicator) -> list[bytes]:
    device = communicator.transport.device
    lengths = communicator.all_gather(torch.tensor([len(text)], device=device)).flatten().tolist()
    texts = communicator.all_gather(_bytes(text.ljust(max(lengths)), communicator)).cpu()
    return [bytes(row[:length].tolist()) for row, length in zip(texts, lengths, strict=True)]


def _bytes(data: bytes, communicator: Communicator) -> Tensor:
    return torch.tensor(list(data), dtype=torch.uint8, device=communicator.transport.device)


def _describe_key(key: str, values: Sequence[str | None]) -> str:
    ranks_of: dict[str | None, list[int]] = {}
    for rank, value in enumerate(values):
        ranks_of.setdefault(value, []).append(rank)
    common = _num_alike([value for value in ranks_of if value is not None])
    told = [
        f"{'absent' if value is None else _shorten(value, common)} on {name_ranks(ranks)}"
        for value, ranks in list(ranks_of.items())[:_MOST_VALUES]
    ]
    if len(ranks_of) > _MOST_VALUES:
        told.append("otherwise on others")
    return f"{key} is {', '.join(told[:-1])} and {told[-1]}"


def _num_alike(values: Sequence[str]) -> int:
    """Returns with how many letters all values begin alike."""
    # What the first and the last in order share, all between them do.
    first, last = min(values), max(values)
    return next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))


def _shorten(value: str, common: int) -> str:
    if not value:
        return "empty"
    if len(value) <= _LONGEST_VALUE:
        return value
    begin = max(0, common - _LEAD)
    end = begin + _LONGEST_VALUE
    return f"{'...' if begin else ''}{value[begin:end]}{'...' if end < len(value) else ''}"

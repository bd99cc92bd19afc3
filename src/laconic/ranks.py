"""Ranks as a launcher numbers them: the variables that torchrun sets, and how ranks are named in messages. No torch."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from laconic.errors import ConfigError

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_MAX_RANKS = 1 << 20
_MOST_NAMED = 8
_ADVICE = (
    "Start the ranks with `laconic train --ranks`, torchrun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT for each of them."
)


@final
@dataclass(frozen=True, slots=True)
class RankAddress:
    """Which rank this process is, and where all of them meet."""

    rank: int
    num_ranks: int
    address: str
    port: int
    launcher_keeps_store: bool
    """Whether the launcher listens there, as torchrun does, and not rank 0."""

    @property
    def keeps_store(self) -> bool:
        """Whether the store lives in this process."""
        return self.rank == 0 and not self.launcher_keeps_store

    @property
    def keeper(self) -> str:
        """Who keeps the store, in words."""
        return "the launcher" if self.launcher_keeps_store else "rank 0"


def read_rank_address(environ: Mapping[str, str]) -> RankAddress:
    """Returns what torchrun's variables say."""
    num_ranks = read_num_ranks(environ)
    return RankAddress(
        rank=read_number(environ, "RANK", 0, num_ranks - 1),
        num_ranks=num_ranks,
        address=read_text(environ, "MASTER_ADDR"),
        port=read_port(environ),
        launcher_keeps_store=environ.get(AGENT_STORE) == "True",
    )


def read_num_ranks(environ: Mapping[str, str], name: str = "WORLD_SIZE", *, least: int = 1) -> int:
    """Returns how many ranks a variable says there are."""
    return read_number(environ, name, least, _MAX_RANKS)


def read_port(environ: Mapping[str, str]) -> int:
    """Returns the port at which ranks meet."""
    return read_number(environ, "MASTER_PORT", 1, 65535)


def read_number(environ: Mapping[str, str], name: str, low: int, high: int) -> int:
    """Returns the whole number that a variable should be."""
    text = read_text(environ, name)
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise bad_variable(environ, name, f"a whole number from {low} to {high}")
    return int(text)


def read_text(environ: Mapping[str, str], name: str) -> str:
    """Returns what a variable that should be set is set to."""
    if not is_set(environ, name):
        known = next((known for known in ("RANK", "WORLD_SIZE") if is_set(environ, known)), None)
        known = "SLURM_STEP_ID" if name.startswith("SLURM") else known
        although = f", although {known} is {environ.get(known)!r}" if known is not None else ""
        raise ConfigError(f"The variable {name} is not set{although}. {_ADVICE}")
    return environ[name].strip()


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """Whether a variable is there and not empty."""
    return bool(environ.get(name, "").strip())


def bad_variable(environ: Mapping[str, str], name: str, expected: str) -> ConfigError:
    """Returns the error for a variable that is something else than `expected`."""
    among = f" (WORLD_SIZE is {environ.get('WORLD_SIZE')})" if name == "RANK" else ""
    return ConfigError(f"The variable {name} should be {expected}{among}, got {environ[name]!r}. {_ADVICE}")


def is_loopback(address: str) -> bool:
    """Whether an address never leaves this machine. Of names, only localhost is known to."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def name_ranks(ranks: Sequence[int]) -> str:
    """Returns "rank 2", "ranks 1, 2" or "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 24 more"."""
    named = ", ".join(map(str, ranks[:_MOST_NAMED]))
    rest = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{rest}"

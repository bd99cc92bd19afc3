"""Which rank this process is: by the variables that torchrun sets, or by SLURM's inside a step of several tasks.

On Kubernetes there is nothing of its own to read. A PyTorchJob sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; an
indexed Job can: RANK from the field metadata.annotations['batch.kubernetes.io/job-completion-index'], WORLD_SIZE equal
to `completions`, MASTER_ADDR the pod with index 0 of a headless service, MASTER_PORT any. With one rank in each pod,
LOCAL_RANK and LOCAL_WORLD_SIZE may be left out.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from laconic.errors import ConfigError
from laconic.launch import _slurm as slurm

_MAX_RANKS = 1 << 20
_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
_ADVICE = (
    "Start the ranks with `laconic train --ranks`, torchrun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and "
    "MASTER_PORT for each of them."
)


@final
@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """Which of several ranks this process is, and where they meet."""

    rank: int
    num_ranks: int
    local_rank: int
    """Number of this rank among those on its machine."""
    num_local_ranks: int
    address: str
    port: int
    launcher_keeps_store: bool = False
    """Whether the launcher listens there, as torchrun's agent does, and not rank 0."""

    def variables(self) -> dict[str, str]:
        """Returns it by the names of torchrun."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.num_ranks),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.num_local_ranks),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            _AGENT_STORE: str(self.launcher_keeps_store),
        }


def rank_environment(environ: Mapping[str, str] = os.environ) -> RankEnvironment | None:
    """Returns which rank this process is; None when nothing says that there are several.

    torchrun's variables win: where RANK is set, SLURM's are not looked at. MASTER_ADDR and MASTER_PORT win in a SLURM
    step too.
    """
    if not _is_set(environ, "RANK"):
        if slurm.in_step_of_several(environ):
            return _from_slurm(environ)
        if not _is_set(environ, "WORLD_SIZE") or _number(environ, "WORLD_SIZE", 1, _MAX_RANKS) == 1:
            return None
    num_ranks = _number(environ, "WORLD_SIZE", 1, _MAX_RANKS)
    rank = _number(environ, "RANK", 0, num_ranks - 1)
    if num_ranks == 1:
        return None
    address = _text(environ, "MASTER_ADDR")
    # Without a word about it, ranks are one to a machine, unless they can only meet on this one.
    is_one_machine = _is_loopback(address)
    num_local = num_ranks if is_one_machine else 1
    if _is_set(environ, "LOCAL_WORLD_SIZE"):
        num_local = _number(environ, "LOCAL_WORLD_SIZE", 1, num_ranks)
    local_rank = rank if is_one_machine and num_local == num_ranks else 0
    if _is_set(environ, "LOCAL_RANK"):
        local_rank = _number(environ, "LOCAL_RANK", 0, num_ranks - 1)
        if not _is_set(environ, "LOCAL_WORLD_SIZE"):
            num_local = max(num_local, local_rank + 1)
        elif local_rank >= num_local:
            raise _bad("LOCAL_RANK", f"less than LOCAL_WORLD_SIZE, which is {num_local}", environ)
    return RankEnvironment(
        rank=rank,
        num_ranks=num_ranks,
        local_rank=local_rank,
        num_local_ranks=num_local,
        address=address,
        port=_number(environ, "MASTER_PORT", 1, 65535),
        launcher_keeps_store=environ.get(_AGENT_STORE) == "True",
    )


def _from_slurm(environ: Mapping[str, str]) -> RankEnvironment:
    num_ranks = _number(environ, slurm.num_tasks_variable(environ), 2, _MAX_RANKS)
    local_rank = _number(environ, "SLURM_LOCALID", 0, num_ranks - 1)
    given = environ.get("MASTER_ADDR", "").strip()
    return RankEnvironment(
        rank=_number(environ, "SLURM_PROCID", 0, num_ranks - 1),
        num_ranks=num_ranks,
        local_rank=local_rank,
        num_local_ranks=max(local_rank + 1, slurm.num_tasks_here(environ, num_ranks)),
        address=given or slurm.first_host(environ),
        port=_number(environ, "MASTER_PORT", 1, 65535) if _is_set(environ, "MASTER_PORT") else slurm.port(environ),
    )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return bool(environ.get(name, "").strip())


def _text(environ: Mapping[str, str], name: str) -> str:
    if not _is_set(environ, name):
        known = "RANK" if _is_set(environ, "RANK") else "WORLD_SIZE"
        known = "SLURM_STEP_ID" if name.startswith("SLURM") else known
        raise ConfigError(f"The variable {name} is not set, although {known} is {environ.get(known)!r}. {_ADVICE}")
    return environ[name].strip()


def _number(environ: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = _text(environ, name)
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise _bad(name, f"a whole number from {low} to {high}", environ)
    return int(text)


def _bad(name: str, expected: str, environ: Mapping[str, str]) -> ConfigError:
    among = f" (WORLD_SIZE is {environ.get('WORLD_SIZE')})" if name == "RANK" else ""
    return ConfigError(f"The variable {name} should be {expected}{among}, got {environ[name]!r}. {_ADVICE}")

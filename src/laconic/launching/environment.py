"""Which rank this process is: by the variables that torchrun sets, or by SLURM's inside a step of several tasks.

On Kubernetes there is nothing of its own to read. A PyTorchJob sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; an
indexed Job can: RANK from the field metadata.annotations['batch.kubernetes.io/job-completion-index'], WORLD_SIZE equal
to `completions`, MASTER_ADDR the pod with index 0 of a headless service, MASTER_PORT any. With one rank in each pod,
LOCAL_RANK and LOCAL_WORLD_SIZE may be left out.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from laconic.launching import _slurm as slurm
from laconic.ranks import (
    AGENT_STORE,
    bad_variable,
    is_loopback,
    is_set,
    read_num_ranks,
    read_number,
    read_port,
    read_rank_address,
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
            AGENT_STORE: str(self.launcher_keeps_store),
        }


def rank_environment(environ: Mapping[str, str] = os.environ) -> RankEnvironment | None:
    """Returns which rank this process is; None when nothing says that there are several.

    torchrun's variables win: where RANK is set, SLURM's are not looked at. MASTER_ADDR and MASTER_PORT win in a SLURM
    step too.
    """
    if not is_set(environ, "RANK"):
        if slurm.in_step_of_several(environ):
            return _from_slurm(environ)
        if not is_set(environ, "WORLD_SIZE"):
            return None
    if read_num_ranks(environ) == 1:
        if is_set(environ, "RANK"):
            read_number(environ, "RANK", 0, 0)
        return None
    place = read_rank_address(environ)
    # Without a word about it, ranks are one to a machine, unless they can only meet on this one.
    is_one_machine = is_loopback(place.address)
    num_local = place.num_ranks if is_one_machine else 1
    if is_set(environ, "LOCAL_WORLD_SIZE"):
        num_local = read_number(environ, "LOCAL_WORLD_SIZE", 1, place.num_ranks)
    local_rank = place.rank if is_one_machine and num_local == place.num_ranks else 0
    if is_set(environ, "LOCAL_RANK"):
        local_rank = read_number(environ, "LOCAL_RANK", 0, place.num_ranks - 1)
        if not is_set(environ, "LOCAL_WORLD_SIZE"):
            num_local = max(num_local, local_rank + 1)
        elif local_rank >= num_local:
            raise bad_variable(environ, "LOCAL_RANK", f"less than LOCAL_WORLD_SIZE, which is {num_local}")
    return RankEnvironment(
        rank=place.rank,
        num_ranks=place.num_ranks,
        local_rank=local_rank,
        num_local_ranks=num_local,
        address=place.address,
        port=place.port,
        launcher_keeps_store=place.launcher_keeps_store,
    )


def _from_slurm(environ: Mapping[str, str]) -> RankEnvironment:
    num_ranks = read_num_ranks(environ, slurm.num_tasks_variable(environ), least=2)
    local_rank = read_number(environ, "SLURM_LOCALID", 0, num_ranks - 1)
    given = environ.get("MASTER_ADDR", "").strip()
    return RankEnvironment(
        rank=read_number(environ, "SLURM_PROCID", 0, num_ranks - 1),
        num_ranks=num_ranks,
        local_rank=local_rank,
        num_local_ranks=max(local_rank + 1, slurm.num_tasks_here(environ, num_ranks)),
        address=given or slurm.first_host(environ),
        port=read_port(environ) if is_set(environ, "MASTER_PORT") else slurm.port(environ),
    )

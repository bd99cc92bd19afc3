"""The option --ranks of the verbs that ranks can share: starts them here, unless torchrun or SLURM has already."""

import logging
import sys
from collections.abc import Callable

import typer

from laconic.cli.console import print_error
from laconic.cli.status import LOADING, working
from laconic.errors import ConfigError
from laconic.launching.environment import rank_environment
from laconic.launching.template import can_be_template, loading, loading_for_ranks
from laconic.processes import num_usable_cores
from laconic.specs import split_spec, unknown_name
from laconic.strategies import STRATEGIES, present_spec
from laconic.units import format_bytes

logger = logging.getLogger(__name__)

RANKS_HELP = "Start so many ranks here, which share the graph. Not needed under torchrun or SLURM."
# What Python, PyTorch and PyG take in each process alone, measured; the graph and the model come on top.
_BYTES_PER_RANK = 300 * 2**20


def share_among_ranks(num_ranks: int | None, check: Callable[[int], None]) -> int:
    """Returns the number of this rank, or starts `num_ranks` of them, waits for them, and exits with their code.

    Args:
        check: called with the number of ranks, raises for what can be refused without them.
    """
    here = rank_environment()
    if here is not None:
        if num_ranks not in (None, here.num_ranks):
            raise ConfigError(
                f"--ranks is {num_ranks}, but this is rank {here.rank} of {here.num_ranks} that were started already. "
                f"Leave --ranks out under torchrun or SLURM."
            )
        if here.rank > 0:
            # Rank 0 speaks for all; what goes wrong is said by whoever it happens to.
            logging.getLogger("laconic").setLevel(logging.WARNING)
        return here.rank
    if num_ranks is None or num_ranks == 1:
        return 0
    if num_ranks < 1:
        raise ConfigError(f"--ranks should be 1 or more; got {num_ranks}.")
    if num_ranks > num_usable_cores():
        _warn_of_shared_cores(num_ranks, num_usable_cores())
    # What all ranks need is loaded here, and refused here: they begin as copies of this process.
    is_template = can_be_template()
    with working(f"{LOADING} for {num_ranks} ranks"), loading_for_ranks(num_ranks):
        check(num_ranks)
        from laconic.kernels.compile import load_compiler

        load_compiler()
    from laconic.cli.main import main
    from laconic.launching.local import run_local_ranks

    # The same command again: its ranks find in their environment who they are.
    command = [sys.executable, "-m", "laconic", *sys.argv[1:]]
    loaded = main if is_template else None
    raise typer.Exit(run_local_ranks(command, num_ranks, loaded=loaded, tell=print_error))


def first_status() -> str:
    """Returns what a process that trains or predicts does first; a copy has loaded all already."""
    return f"Starting {num_ranks_here()} ranks" if "torch_geometric" in sys.modules else LOADING


def load_trainer() -> None:
    """Imports what training and predicting take: seconds, the first time."""
    with loading():
        import laconic.trainer.early_checks  # noqa: F401


def check_strategy_name(strategy: str, num_ranks: int | None) -> None:
    """Raises ConfigError for a strategy that is not there, or not for so many ranks; loads nothing.

    Args:
        num_ranks: what --ranks says; None where others started the ranks, or there is one.
    """
    name = split_spec(present_spec(strategy), family="strategy")[0]
    choices = ["auto", *STRATEGIES]
    if name not in choices:
        raise ConfigError(unknown_name(name, choices, family="strategy"))
    here = rank_environment()
    num_ranks = num_ranks or (1 if here is None else here.num_ranks)
    if name == "single" and num_ranks > 1:
        raise ConfigError(
            f"The strategy single is for one rank, but there are {num_ranks}. Use the strategy exchange, "
            f"which gives the same result on several."
        )


def num_ranks_here() -> int:
    """Returns of how many ranks this process is one."""
    here = rank_environment()
    return 1 if here is None else here.num_ranks


def _warn_of_shared_cores(num_ranks: int, num_cores: int) -> None:
    cores = "one core" if num_cores == 1 else f"{num_cores} cores"
    logger.warning(
        "%s ranks share %s and take turns: starting them, and each epoch, takes longer than on %s. Each needs about %s "
        "of memory before it has any of the graph, %s for all.",
        num_ranks,
        cores,
        "one rank" if num_cores == 1 else f"{num_cores} ranks",
        format_bytes(_BYTES_PER_RANK),
        format_bytes(num_ranks * _BYTES_PER_RANK),
    )

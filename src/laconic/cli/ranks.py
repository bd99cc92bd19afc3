"""The option --ranks of the verbs that ranks can share: starts them here, unless torchrun or SLURM has already."""

import logging
import sys
from collections.abc import Callable

import typer

from laconic.cli.console import print_error
from laconic.errors import ConfigError
from laconic.launch.environment import rank_environment
from laconic.launch.template import can_be_template, loading, loading_for_ranks

RANKS_HELP = "Start so many ranks here, which share the graph. Not needed under torchrun or SLURM."


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
    # What all ranks need is loaded here, and refused here: they begin as copies of this process.
    is_template = can_be_template()
    with loading_for_ranks(num_ranks):
        check(num_ranks)
        from laconic.kernels.compile import load_compiler

        load_compiler()
    from laconic.cli.main import main
    from laconic.launch.local import run_local_ranks

    # The same command again: its ranks find in their environment who they are.
    command = [sys.executable, "-m", "laconic", *sys.argv[1:]]
    loaded = main if is_template else None
    raise typer.Exit(run_local_ranks(command, num_ranks, loaded=loaded, tell=print_error))


def has_several_ranks() -> bool:
    """Whether this process is one of several ranks."""
    return rank_environment() is not None


def load_trainer() -> None:
    """Imports what training and predicting take: seconds, the first time."""
    with loading():
        import laconic.trainer.early_checks  # noqa: F401

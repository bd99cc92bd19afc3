"""The command `laconic`: its verbs, and how it ends.

Exit code 0: done. 1: `doctor` found something missing, or a fault of ours (with a traceback). 2: something the user
can mend, told in one paragraph. 130: interrupted. Verbs import what is heavy inside their functions: --help is quick.

    laconic --help
"""

import errno
import re
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from laconic import __version__
from laconic.cli.console import error_console, print_error, show_log_lines
from laconic.cli.datasets import datasets
from laconic.cli.doctor import doctor
from laconic.cli.info import info
from laconic.cli.lab import lab
from laconic.cli.partition import partition
from laconic.cli.predict import predict
from laconic.cli.setting_advice import advise_setting
from laconic.cli.train import train
from laconic.errors import LaconicError
from laconic.launching.last_words import leave_last_words
from laconic.processes import leave
from laconic.units import format_bytes

# Typer shows it by its members only.
_UsageError: Any = typer.BadParameter.__base__
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


class _Verbs(TyperGroup):
    """The group of verbs; turns errors that a user can mend into a message and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # "laconic train --debug" is what people type; the option belongs to the command, so it moves to the front.
        own, rest = args, []
        if "--" in args:
            own, rest = args[: args.index("--")], args[args.index("--") :]
        if "--debug" in own:
            own = ["--debug", *(argument for argument in own if argument != "--debug")]
        self._arguments = own
        return super().parse_args(ctx, own + rest)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            self._add_advice(error)
            raise
        except LaconicError as error:
            _explain(str(error), ctx.params["debug"])
        except OSError as error:
            if error.errno == errno.EPIPE or (error.filename is None and error.errno != errno.ENOSPC):
                raise
            where = error.filename or "A file"
            _explain(f"{where}: {error.strerror}. Check the path, its rights and the free space.", ctx.params["debug"])
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            _explain(_say_memory(error), ctx.params["debug"])
        except KeyboardInterrupt:
            error_console().print("Interrupted.")
            raise typer.Exit(EXIT_INTERRUPTED) from None
        raise typer.Exit(EXIT_USER_ERROR)

    def _add_advice(self, error: Any) -> None:
        option = getattr(error, "option_name", None)
        if option is not None and error.ctx is not None and error.ctx.info_name == train.__name__:
            advice = advise_setting(option, self._arguments)
            if advice is not None:
                error.message, error.possibilities = f"{error.message}. {advice}", None


def _is_out_of_memory(error: Exception) -> bool:
    # Torch has no class of its own for it on the CPU.
    return isinstance(error, MemoryError) or re.search("can't allocate memory|out of memory", str(error)) is not None


def _say_memory(error: Exception) -> str:
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    reason = f"tried to allocate {format_bytes(int(asked[1]))}" if asked else str(error).strip().rstrip(".")
    return (
        f"There is not enough memory{f' ({reason})' if reason else ''}. Use a smaller graph or model, mini-batches "
        f"(--set training.batch_size=1024), or a machine with more of it."
    )


def _explain(message: str, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    # Of several ranks that `--ranks` started, the starter speaks.
    if not leave_last_words(message):
        print_error(message)


app = typer.Typer(
    cls=_Verbs,
    rich_markup_mode="markdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"laconic {__version__}")
        raise typer.Exit


@app.callback()
def laconic(
    debug: bool = typer.Option(
        False, "--debug", envvar="LACONIC_DEBUG", help="Show tracebacks and all log lines; may stand anywhere."
    ),
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Trains graph neural networks on graphs too large for one machine, saying as little as possible between them.

    **Example**

    ```
    laconic train
    laconic train cora.npz --model gcn
    ```
    """
    show_log_lines(debug=debug)


for verb in (train, predict, partition, info, datasets):
    app.command()(verb)
# What follows the command that it runs belongs to that command.
app.command(context_settings={"allow_interspersed_args": False})(lab)
app.command()(doctor)


def main() -> None:
    """Runs the command and ends the process; the entry point of the package."""
    try:
        app()
    except SystemExit as end:
        leave(end.code)

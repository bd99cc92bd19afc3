"""The verb `train`: a graph and a model in, a run folder out."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from laconic.cli.console import console, error_console
from laconic.cli.ranks import RANKS_HELP, has_several_ranks, share_among_ranks
from laconic.errors import ConfigError
from laconic.launch.environment import rank_environment
from laconic.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from laconic.trainer import Summary
    from laconic.trainer.config_file import Layer


def train(
    data: str | None = typer.Argument(
        None,
        help="A dataset (see `laconic datasets`), a file or a store folder; without it sbm, a small built-in graph.",
    ),
    model: str | None = typer.Option(
        None,
        "--model",
        "-m",
        help="mlp, sgc, gcn, sage, gin, gat, gatv2 or appnp; with settings: 'sage(hidden=256)'; or a class or function "
        "of your own: my_model.py:Net.",
    ),
    strategy: str | None = typer.Option(
        None,
        "--strategy",
        help="How ranks learn together: single; on several compressed_halo or full_graph (exact), or gradient_only.",
    ),
    epochs: int | None = typer.Option(None, "--epochs", "-e", help="Passes over the training nodes."),
    config: Path | None = typer.Option(None, "--config", "-c", help="A TOML file of settings, or a run's config.json."),
    settings: list[str] = typer.Option(
        [], "--set", "-s", metavar="SECTION.KEY=VALUE", help="One setting, such as training.lr=0.05. May be repeated."
    ),
    name: Path | None = typer.Option(
        None, "--name", help="The run folder; by default runs/GRAPH-MODEL-NUMBER. It must not exist yet."
    ),
    resume: Path | None = typer.Option(None, "--resume", help="Continue the run in this folder."),
    seed: int | None = typer.Option(None, "--seed", help="The same seed gives the same run."),
    threads: int | None = typer.Option(None, "--threads", help="Threads for torch and the kernels, per rank."),
    ranks: int | None = typer.Option(None, "--ranks", help=RANKS_HELP),
    list_settings: bool = typer.Option(
        False, "--settings", help="List every setting that --set takes, for this --model, and exit."
    ),
) -> None:
    """Trains a model for node classification, on one machine or many, and shows what it learned.

    Settings come from --config, then from the flags, then from --set; all, resolved, are kept in the run folder.
    --ranks starts ranks on this machine; on many, start it by torchrun (-m laconic train ...) or srun on each.
    Ctrl-C finishes the step and leaves a checkpoint; --resume goes on from there as if nothing had happened.

    **Example**

    ```
    laconic train
    laconic train cora.npz --model gcn --epochs 100 --set training.lr=0.02
    laconic train store/arxiv -m "sage(hidden=256)" -s training.batch_size=1024
    laconic train store/arxiv --ranks 4
    laconic train cora.npz --model my_model.py:Net -s model.hidden=64
    laconic train --resume runs/cora-gcn-001
    ```
    """
    if list_settings:
        _print_settings(model or "gcn")
        return
    if resume is not None and name is not None:
        raise ConfigError("--name is for a new run and --resume for an old one: give one of them.")
    flags: dict[str, dict[str, Any]] = {
        "data": {"source": data},
        "training": {"strategy": strategy, "epochs": epochs, "seed": seed},
        "run": {"folder": None if name is None else str(name), "threads": threads},
    }

    def layers(num_ranks: int) -> "list[Layer]":
        return _layers(flags, model, config, settings, with_strategy=num_ranks > 1 and resume is None)

    def check(num_ranks: int) -> None:
        from laconic.trainer.early_checks import check_resume, check_start

        if resume is None:
            check_start(layers(num_ranks), num_ranks)
        else:
            check_resume(resume, layers(num_ranks), num_ranks)

    if ranks is not None and ranks > 1 and ":" in (model or "") and rank_environment() is None:
        # The user's own code is tried once here, before every rank executes it.
        check(ranks)
    rank = share_among_ranks(ranks, check)
    summary = _run(layers(2 if has_several_ranks() else 1), resume)
    if rank == 0:
        _print_summary(summary)
    if summary.ending == "interrupted":
        if rank > 0:
            raise typer.Exit(128 + (summary.signal or 0))
        error_console().print(
            f"Interrupted after {summary.num_epochs} whole epochs. Continue with: "
            f"laconic train --resume {summary.folder}",
            markup=False,
            soft_wrap=True,
        )
        # What a shell expects of a command that a signal ended.
        raise typer.Exit(128 + (summary.signal or 0))


def _run(layers: "list[Layer]", resume: Path | None) -> "Summary":
    from laconic.trainer import resume as resume_run
    from laconic.trainer import start
    from laconic.trainer.config_file import resolve
    from laconic.trainer.progress import choose_display

    display = choose_display(error_console())
    if resume is not None:
        return resume_run(resume, layers, display=display)
    return start(resolve(layers), display=display)


def _layers(
    flags: dict[str, dict[str, Any]],
    model: str | None,
    config: Path | None,
    settings: list[str],
    *,
    with_strategy: bool,
) -> "list[Layer]":
    from laconic.trainer.config_file import merge, model_layer, parse_override, read_layer

    models = [model_layer(model)] if model is not None else []
    given = merge([_given(flags), *models, *(parse_override(setting) for setting in settings)])
    layers = [read_layer(config), given] if config is not None else [given]
    # Below all that was asked for.
    return [{"training": {"strategy": "compressed_halo"}}, *layers] if with_strategy else layers


def _given(flags: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        section: {key: value for key, value in values.items() if value is not None} for section, values in flags.items()
    }


def _print_settings(model: str) -> None:
    from laconic.trainer.settings import list_settings

    table = Table("Setting", "Default", "Meaning", box=None, padding=(0, 2, 0, 0))
    for setting in list_settings(model):
        table.add_row(*map(Text, (setting.name, setting.default, setting.explanation)))
    console().print(table)


def _print_summary(summary: "Summary") -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")  # a path that is cut is of no use
    best = summary.best
    if best is not None:
        table.add_row("Best epoch", f"{best.epoch} of {summary.num_epochs}" + _because(summary))
        for split, score in (("Train", best.train), ("Validation", best.val), ("Test", best.test)):
            if score is not None:
                table.add_row(f"{split} {summary.metric}", f"{score:.4f}")
    table.add_row("Time per epoch", format_seconds(summary.seconds_per_epoch))
    if summary.wait_share > 0:
        table.add_row("Waiting for batches", f"{summary.wait_share:.0%} of the time")
    if summary.num_ranks > 1 and summary.bytes_per_epoch is not None:
        table.add_row("Ranks", str(summary.num_ranks))
        table.add_row("Traffic per epoch", f"{format_bytes(summary.bytes_per_epoch)} received by all ranks")
    table.add_row("Parameters", format_count(summary.num_parameters))
    table.add_row("Run folder", str(summary.folder))
    console().print(table)


def _because(summary: "Summary") -> str:
    return "" if summary.ending == "finished" else f" ({summary.ending})"

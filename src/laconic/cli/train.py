"""The verb `train`: a graph and a model in, a run folder out."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table
from rich.text import Text

from laconic.cli.console import console, error_console
from laconic.cli.ranks import (
    RANKS_HELP,
    check_strategy_name,
    first_status,
    load_trainer,
    num_ranks_here,
    share_among_ranks,
)
from laconic.cli.status import LOADING, Status, working
from laconic.cli.traffic_table import print_traffic
from laconic.errors import ConfigError
from laconic.specs import split_spec
from laconic.strategies import present_spec
from laconic.units import format_count, format_seconds

if TYPE_CHECKING:
    from laconic.trainer import Summary
    from laconic.trainer.config_file import Layer
    from laconic.trainer.settings import Setting


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
        help="How ranks learn together: single; on several exchange, full_graph (exact), gradient_only, grappa.",
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
    undirected: bool = typer.Option(
        False, "--undirected", help="Add the reverse of each edge, for an undirected graph whose edges are listed once."
    ),
    list_settings: bool = typer.Option(
        False, "--settings", help="List every setting that --set takes, for this --model and --strategy, and exit."
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
        _print_settings(model or "gcn", strategy)
        return
    if resume is not None and name is not None:
        raise ConfigError("--name is for a new run and --resume for an old one: give one of them.")
    flags: dict[str, dict[str, Any]] = {
        "data": {"source": data, "undirected": undirected or None},
        "training": {"strategy": strategy, "epochs": epochs, "seed": seed},
        "run": {"folder": None if name is None else str(name), "threads": threads},
    }

    def layers() -> "list[Layer]":
        return _layers(flags, model, config, settings)

    def check(num_ranks: int) -> None:
        from laconic.trainer.early_checks import check_resume, check_start

        if resume is None:
            check_start(layers(), num_ranks)
        else:
            check_resume(resume, layers(), num_ranks)

    if strategy is not None:
        check_strategy_name(strategy, ranks)
    rank = share_among_ranks(ranks, check)
    with working(first_status()) if rank == 0 else nullcontext() as status:
        load_trainer()
        summary = _run(layers(), resume, status)
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


def _run(layers: "list[Layer]", resume: Path | None, status: Status | None) -> "Summary":
    from laconic.trainer import resume as resume_run
    from laconic.trainer import start
    from laconic.trainer.config_file import resolve
    from laconic.trainer.early_checks import check_strategy
    from laconic.trainer.progress import choose_display

    display = choose_display(error_console(), status)
    if resume is not None:
        return resume_run(resume, layers, display=display)
    config = resolve(layers)
    # Before ranks wait for each other and load the graph.
    check_strategy(config, num_ranks_here())
    return start(config, display=display)


def _layers(
    flags: dict[str, dict[str, Any]],
    model: str | None,
    config: Path | None,
    settings: list[str],
) -> "list[Layer]":
    from laconic.trainer.config_file import merge, model_layer, parse_override, read_layer

    models = [model_layer(model)] if model is not None else []
    given = merge([_given(flags), *models, *(parse_override(setting) for setting in settings)])
    return [read_layer(config), given] if config is not None else [given]


def _given(flags: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        section: {key: value for key, value in values.items() if value is not None} for section, values in flags.items()
    }


def _print_settings(model: str, strategy: str | None) -> None:
    with working(LOADING):
        from laconic.trainer.settings import list_settings, list_strategy_settings

    _print_setting_table(list_settings(model))
    if strategy is None:
        console().print("\n--settings --strategy NAME lists the settings of a strategy too.", style="dim")
        return
    name = split_spec(present_spec(strategy), family="strategy")[0]
    own = list_strategy_settings(name)
    if not own:
        console().print(f"\nThe strategy {name} has no settings.")
        return
    console().print(f'\nSettings of the strategy: --strategy "{name}({own[0].name}=...)"', markup=False)
    _print_setting_table(own)


def _print_setting_table(settings: "list[Setting]") -> None:
    table = Table("Setting", "Default", "Meaning", box=None, padding=(0, 2, 0, 0))
    for setting in settings:
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
    table.add_row("Time per epoch", f"{format_seconds(summary.seconds_per_epoch)}, evaluations not counted")
    if summary.num_evaluations:
        each = format_seconds(summary.evaluation_seconds)
        table.add_row("Evaluations", f"{summary.num_evaluations}, {each} each")
    if summary.wait_share > 0:
        table.add_row("Waiting for batches", f"{summary.wait_share:.0%} of the time")
    table.add_row("Strategy", summary.strategy)
    if summary.num_ranks > 1:
        table.add_row("Ranks", str(summary.num_ranks))
    table.add_row("Parameters", format_count(summary.num_parameters))
    table.add_row("Run folder", str(summary.folder))
    out = console()
    out.print(table)
    if summary.num_ranks > 1 and summary.traffic is not None:
        out.print()
        print_traffic(out, summary.traffic)


def _because(summary: "Summary") -> str:
    return "" if summary.ending == "finished" else f" ({summary.ending})"

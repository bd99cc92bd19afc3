"""The verb `predict`: a run folder in, a file of predictions out."""

from contextlib import nullcontext
from pathlib import Path
from typing import Literal, cast

import typer

from laconic.cli.console import console
from laconic.cli.ranks import RANKS_HELP, first_status, load_trainer, share_among_ranks
from laconic.cli.status import working
from laconic.errors import ConfigError
from laconic.units import format_count


def predict(
    run_folder: Path = typer.Argument(..., help="The folder of a run that `laconic train` made."),
    out: Path = typer.Option(Path("predictions.npz"), "--out", "-o", help="The file to write: .npz or .csv."),
    data: str | None = typer.Option(
        None,
        "--data",
        help="Another graph than the run's, with the same features; it needs no labels and no masks.",
    ),
    checkpoint: str = typer.Option("best", "--checkpoint", help="The model to use: best or last."),
    ranks: int | None = typer.Option(None, "--ranks", help=RANKS_HELP),
) -> None:
    """Predicts the class of every node with a trained model, and writes it under the nodes' original ids.

    .npz holds node_ids, classes and the probabilities of every class, and class_names where labels are text. .csv has
    a row per node. Ids and classes that are text come back as text. A file that is there already is replaced.

    **Example**

    ```
    laconic predict runs/cora-gcn-001 --out predictions.csv
    laconic predict runs/cora-gcn-001 --data newer.npz --checkpoint last
    laconic predict runs/arxiv-sage-001 --ranks 4
    ```
    """
    if checkpoint not in ("best", "last"):
        raise ConfigError(f"--checkpoint should be best or last; got {checkpoint!r}.")

    def check(num_ranks: int) -> None:
        from laconic.trainer.early_checks import check_predict

        check_predict(run_folder, out, source=data, which=which, num_ranks=num_ranks)

    which = cast(Literal["best", "last"], checkpoint)
    rank = share_among_ranks(ranks, check)
    with working(first_status()) if rank == 0 else nullcontext() as status:
        load_trainer()
        from laconic.trainer.predict import check_output, write_predictions
        from laconic.trainer.predict import predict as predict_run

        if status is not None:
            check_output(out)
            status.tell(f"Loading the graph, and predicting with {run_folder}")
        predictions = predict_run(run_folder, source=data, which=which)
        if status is None:
            return
        status.tell(f"Writing {out}")
        write_predictions(predictions, out)
    console().print(
        f"Wrote {out}: {format_count(len(predictions.node_ids))} nodes, by the model of epoch {predictions.epoch}.",
        markup=False,
        soft_wrap=True,
    )

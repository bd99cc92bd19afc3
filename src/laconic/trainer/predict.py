"""Predictions of a trained run for every node, under the ids that the nodes had in their data.

predictions = predict(Path("runs/cora-gcn-001"))
write_predictions(predictions, Path("predictions.npz"))
"""

import csv
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from laconic.atomic import find_obstacle, write_file
from laconic.comm import Communicator
from laconic.errors import ConfigError, DataError
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement
from laconic.models import OwnModel, build_model
from laconic.session import Session
from laconic.session.data import describe_data, open_data
from laconic.session.evaluate import whole_graph_logits
from laconic.session.predictions import Predictions, gather_predictions
from laconic.store import Manifest, looks_like_store, open_store
from laconic.strategies import parse_strategy
from laconic.strategies.base import ExpectedRun
from laconic.trainer.checkpoint import Checkpoints, Which
from laconic.trainer.run_folder import RunFolder
from laconic.trainer.snapshot import Snapshot, load_model
from laconic.trainer.start import tell_kept_model, together, using_seed, using_threads

logger = logging.getLogger(__name__)


def predict(
    path: Path,
    *,
    source: str | None = None,
    which: Which = "best",
    graph: Graph | None = None,
    model: nn.Module | None = None,
    communicator: Communicator | None = None,
) -> Predictions:
    """Returns the predictions of the run in folder `path`, exact on the whole graph.

    Where ranks share the work, rank 0 has the predictions, by node id, and the others have none.

    Args:
        source: another graph than the run's own, with the same features. Its labels and masks are not looked at, and
            there need be none.
        which: the checkpoint: "best" or "last".
        graph, model, communicator: as in `start`.
    """
    with together(communicator) as (communicator, _):
        config = RunFolder.open(path).config()
        checkpoints = Checkpoints(path / "checkpoints")
        snapshot = checkpoints.load(which)
        if graph is None:
            # As in training; the edges of a store are what they are.
            undirected = config.data.undirected and not (source is not None and looks_like_store(source))
            if source is not None and communicator.rank == 0:
                _warn_of_reverse_edges(config.data.source, source)
            data = open_data(
                source or config.data.source,
                communicator.num_ranks,
                labelled=source is None,
                undirected=undirected,
            )
        else:
            data = graph
        about = data if isinstance(data, Graph) else data.manifest
        _check_fits(about, snapshot, path)
        is_multilabel = bool(snapshot.notes["inputs"]["is_multilabel"])
        facts = {"checkpoint": snapshot.name, **describe_data(data)}
        if isinstance(config.model, OwnModel):
            facts["model"] = config.model.sha256
        check_agreement(communicator, {name: str(fact) for name, fact in facts.items()})
        # Exact, whatever the model was trained with. One pass is not worth constants from which to compute rows.
        strategy = parse_strategy("single" if communicator.num_ranks == 1 else "exchange(reach=0)")
        session = Session(data, strategy, config.training.seed, communicator)
        if model is None:
            tell_kept_model(config, communicator)
            num_classes = snapshot.notes["inputs"]["num_classes"]
            model = build_model(config.model, num_features=about.num_features, num_classes=num_classes, seed=0)
        load_model(model, snapshot, checkpoints.folder / snapshot.name)
        # As in training, whatever the features of this graph look like.
        placed = session.place(ExpectedRun(model), normalise=snapshot.notes["inputs"]["normalise_features"])
        session.check(placed, is_trained=False)
        with using_threads(config.run.threads), using_seed(config.training.seed):
            session.attach(model, placed)
            shard = session.shard
            try:
                logits_NC = whole_graph_logits(model, shard)
            finally:
                session.detach()
        return gather_predictions(
            communicator,
            data,
            shard,
            logits_NC,
            is_multilabel=is_multilabel,
            epoch=snapshot.epoch,
            class_names=tuple(snapshot.notes["inputs"].get("class_names") or ()),
        )


def check_output(path: Path) -> None:
    """Raises ConfigError unless predictions can be written to `path`; asked before the work, not after."""
    if os.path.isdir(path):
        raise ConfigError(
            f"{path} is a folder, and predictions are one file. Choose one with --out, such as "
            f"{path / 'predictions.npz'}."
        )
    if path.suffix not in (".npz", ".csv"):
        raise ConfigError(f"Predictions are written as .npz or .csv; got {path}. Choose one with --out.")
    obstacle = find_obstacle(path)
    if obstacle:
        raise ConfigError(f"{path} cannot be written: {obstacle}. Choose another --out.")
    if not path.parent.is_dir():
        raise ConfigError(f"The folder {path.parent} does not exist. Make it, or choose another --out.")


def write_predictions(predictions: Predictions, path: Path) -> None:
    """Writes predictions, replacing the file at `path` all at once.

    .npz: arrays node_ids, classes and probabilities, and class_names where classes have names. .csv: a row per node:
    its id, class (by name, where it has one) and that class's probability, or its id and a column of 0 and 1 per label.
    """
    check_output(path)
    write = _write_npz if path.suffix == ".npz" else _write_csv
    try:
        write_file(path, lambda temporary: write(predictions, temporary))
    except OSError as error:
        # It names the temporary file, of which the user knows nothing.
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}. Make room, or choose another --out."
        ) from error


def _write_npz(predictions: Predictions, path: Path) -> None:
    arrays: dict[str, Any] = {
        "node_ids": predictions.node_ids,
        "classes": predictions.classes,
        "probabilities": predictions.probabilities,
    }
    if predictions.class_names:
        arrays["class_names"] = np.array(predictions.class_names)
    np.savez_compressed(path, **arrays)


def _write_csv(predictions: Predictions, path: Path) -> None:
    ids, names = predictions.node_ids.tolist(), predictions.class_names
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if predictions.is_multilabel:
            labels = names or [f"label_{number}" for number in range(predictions.classes.shape[1])]
            writer.writerow(["node_id", *labels])
            writer.writerows([node, *has] for node, has in zip(ids, predictions.classes.tolist(), strict=True))
            return
        chosen = np.take_along_axis(predictions.probabilities, predictions.classes[:, None], axis=1)[:, 0]
        writer.writerow(["node_id", "class", "probability"])
        # A model of the user's own may know more classes than the graph has names for.
        classes = [names[number] if number < len(names) else number for number in predictions.classes.tolist()]
        rows = zip(ids, classes, chosen.tolist(), strict=True)
        writer.writerows([node, name, f"{probability:.6f}"] for node, name, probability in rows)


def _warn_of_reverse_edges(trained_on: str, source: str) -> None:
    """Logs that the edges of a store got their reverse when it was written, and those of `source` do not."""
    if not looks_like_store(trained_on) or looks_like_store(source) or "add_reverse_edges" in source:
        return
    if open_store(trained_on).manifest.provenance.get("undirected") == "true":
        has_options = source.endswith(")") and not os.path.exists(source)
        spec = f"{source[:-1]}, " if has_options else f"{source}("
        logger.warning(
            "The run was trained on %s, in which each edge has its reverse (partition --undirected). The edges of %s "
            'are taken as they are. For an undirected graph whose edges are listed once, give "%sadd_reverse_edges='
            'True)".',
            trained_on,
            source,
            spec,
        )


def _check_fits(graph: Graph | Manifest, snapshot: Snapshot, path: Path) -> None:
    inputs = snapshot.notes.get("inputs", {})
    if graph.num_classes == 0:
        # Without labels; of which kind they would be, the run knows.
        inputs = {**inputs, "is_multilabel": graph.is_multilabel}
    for what, got in (("num_features", graph.num_features), ("is_multilabel", graph.is_multilabel)):
        if inputs.get(what) != got:
            raise DataError(
                f"{graph.name}: {what} is {got}, but {path} was trained with {inputs.get(what)}. "
                f"Predict for a graph with the same kind of features and labels."
            )
    if graph.num_classes > inputs["num_classes"]:
        raise DataError(
            f"{graph.name}: it has {graph.num_classes} classes, but {path} was trained with {inputs['num_classes']}."
        )

"""How a run begins and ends: all is built and checked before the first file is written; then `loop.py` takes over.

summary = start(Config(data=DataConfig(source="cora")))
summary = resume(Path("runs/cora-gcn-001"), [{"training": {"epochs": 400}}])
"""

import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from laconic import __version__
from laconic.atomic import write_json
from laconic.comm import Communicator
from laconic.errors import CheckpointError, ConfigError
from laconic.graph import Graph
from laconic.launching.agreement import check_agreement
from laconic.launching.environment import rank_environment
from laconic.launching.join import join_ranks
from laconic.models import GivenModel, ModelSpec, OwnModel
from laconic.records import EpochRecord, LedgerRecord, keep_epochs
from laconic.session.data import absolute_source, given_source
from laconic.strategies import parse_strategy, resumed_spec, strategy_for
from laconic.trainer.checkpoint import Checkpoints
from laconic.trainer.config import Config, with_fixed_interval
from laconic.trainer.config_file import Layer, as_layer, differences, resolve
from laconic.trainer.interrupts import Interrupts
from laconic.trainer.loop import train
from laconic.trainer.outputs import FolderOutputs, NoOutputs, Outputs
from laconic.trainer.prepared import PreparedRun, prepared_run
from laconic.trainer.progress import Display, Silent
from laconic.trainer.run import Run, restore
from laconic.trainer.run_folder import RunFolder, check_target
from laconic.trainer.snapshot import Snapshot
from laconic.trainer.state import TrainingState
from laconic.trainer.summary import Summary, summarise
from laconic.trainer.traffic import predict_exact
from laconic.trainer.warm_up import warm_up_model

logger = logging.getLogger(__name__)

# What ranks may have differently: none of it decides what they say to each other.
_OF_EACH_RANK = ("folder", "threads", "batch_workers", "tensorboard", "source")
_NOTICE_AFTER_SECONDS = 3.0
_NOTICE = "Compiling the kernels before the first step. This is done once; they are kept on disk."


def start(
    config: Config,
    *,
    graph: Graph | None = None,
    model: nn.Module | None = None,
    display: Display | None = None,
    communicator: Communicator | None = None,
) -> Summary:
    """Carries out a new run and returns what it learned.

    Args:
        config: all settings.
        graph: used instead of `config.data.source`.
        model: any PyG model, used instead of `config.model`; it is trained in place and ends with the last weights.
            Its first weights are its own; what it draws from torch's generator in training, `training.seed` decides.
        display: who shows how it goes on; nobody by default.
        communicator: how ranks talk; by default those that torchrun or SLURM started come together, and one alone is
            one rank.
    """
    with together(communicator, display) as (communicator, shown):
        _check_no_reverse_edges(config, graph)
        if communicator.rank == 0:
            check_target(config)
        config = with_fixed_interval(_with_absolute_source(config))
        config = _with_strategy(config, communicator)
        _check_same(config, communicator)
        with using_threads(config.run.threads), prepared_run(config, graph, model, communicator, shown) as prepared:
            _tell_of_change(config, communicator)
            config = _with_objects(config, graph, model, prepared)
            shown.phase("Loading the kernels, or compiling them where this is the first time")
            _compile_kernels(config.model)
            folder = RunFolder.create(config, prepared.session.about.name) if communicator.rank == 0 else None
            with using_seed(config.training.seed):
                return _carry_out(config, folder, prepared, TrainingState(), shown)


def resume(
    path: Path,
    layers: Sequence[Layer] = (),
    *,
    graph: Graph | None = None,
    model: nn.Module | None = None,
    display: Display | None = None,
    communicator: Communicator | None = None,
) -> Summary:
    """Continues a run from its last checkpoint, as if it had never stopped.

    Args:
        path: the run folder; every rank reads it.
        layers: settings given anew; only `training.epochs` and the `run` section may differ from the run's own.
        graph, model, display, communicator: as in `start`.
    """
    with together(communicator, display) as (communicator, shown):
        folder = RunFolder.open(path)
        if communicator.rank == 0:
            folder.check_is_writable()
        config = _for_ranks(continued_config(folder, layers), communicator)
        _check_same(config, communicator)
        checkpoints = Checkpoints(folder.checkpoints_path)
        snapshot = checkpoints.load("last")
        if config.training.epochs < snapshot.epoch + bool(snapshot.step):
            raise ConfigError(
                f"{path} has already been trained for {snapshot.epoch} epochs; training.epochs is "
                f"{config.training.epochs}."
            )
        with using_threads(config.run.threads), prepared_run(config, graph, model, communicator, shown) as prepared:
            check_agreement(communicator, {"checkpoint": snapshot.name})
            if model is None:
                tell_kept_model(config, communicator)
            _check_inputs(path, snapshot, prepared.inputs)
            with using_seed(config.training.seed):
                state = restore(prepared, snapshot, checkpoints.folder / snapshot.name)
                if model is None:
                    shown.phase("Loading the kernels, or compiling them where this is the first time")
                    _compile_kernels(config.model)
                # Last: a resumption that is refused leaves the run as it was. All have read before one writes.
                communicator.barrier()
                if communicator.rank == 0:
                    _take_up(config, folder, snapshot)
                own = folder if communicator.rank == 0 else None
                return _carry_out(config, own, prepared, state, shown)


@contextmanager
def together(
    communicator: Communicator | None, display: Display | None = None
) -> Iterator[tuple[Communicator, Display]]:
    """Gives the ranks that belong together, and the display of rank 0; those that were brought together here part."""
    shown = display or Silent()
    with ExitStack() as parting:
        if communicator is None:
            if rank_environment() is not None:
                shown.phase("Waiting for the other ranks to start")
            communicator = join_ranks()
            parting.enter_context(communicator.transport)
        yield communicator, shown if communicator.rank == 0 else Silent()


def _check_same(config: Config, communicator: Communicator) -> None:
    facts = {"laconic": __version__}
    for section, values in as_layer(config).items():
        facts |= {f"{section}.{key}": str(value) for key, value in values.items() if key not in _OF_EACH_RANK}
    check_agreement(communicator, facts)


@contextmanager
def using_threads(num_threads: int) -> Iterator[None]:
    """Inside, torch and the kernels use `num_threads` threads; 0 changes nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def using_seed(seed: int) -> Iterator[None]:
    """Inside, torch's own generator starts from `seed`; after, it is as it was.

    What Laconic draws is keyed and needs none of it; a user's model may draw from it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _take_up(config: Config, folder: RunFolder, snapshot: Snapshot) -> None:
    epoch = snapshot.epoch
    kept = keep_epochs(folder.metrics_path, epoch, EpochRecord)
    if len(kept) < epoch:
        logger.warning("%s lacks rows of epochs before %s.", folder.metrics_path, epoch)
    if folder.ledger_path.exists():
        # Of an epoch that was cut, the rows of its first steps are there already.
        keep_epochs(folder.ledger_path, epoch + bool(snapshot.step), LedgerRecord)
    _warn_of_threads(folder.note_resumption(config))


def _carry_out(
    config: Config, folder: RunFolder | None, prepared: PreparedRun, state: TrainingState, display: Display
) -> Summary:
    session, exact = prepared.session, None
    if session.communicator.num_ranks > 1 and not config.training.batch_size:
        # Exact exchange draws no mini-batches: with them there is nothing to compare.
        exact = predict_exact(session.worker, session.communicator)

    def outputs() -> Outputs:
        if folder is None:
            return NoOutputs()
        board = config.run.tensorboard
        return FolderOutputs(folder, display, tensorboard=board, next_epoch=state.epoch + 1, exact=exact)

    with Interrupts() as interrupts, outputs() as opened:
        run = Run(config, prepared, opened, interrupts, state)
        # What it took to come here belongs to no epoch of its own.
        run.count_traffic()
        opened.display.start(done=state.epoch, total=config.training.epochs, metric=prepared.evaluation.metric)
        try:
            ending = train(run)
        finally:
            opened.display.stop()
        summary = summarise(run, folder.path if folder is not None else Path(), ending)
    if folder is not None:
        write_json(folder.summary_path, summary.to_json())
    return summary


def _compile_kernels(spec: ModelSpec) -> None:
    # A model of the user's own is not called on a graph that is not theirs.
    if not isinstance(spec, OwnModel | GivenModel):
        _compile_sample_kernels(spec)


@cache
def _compile_sample_kernels(spec: ModelSpec) -> None:
    # Loading compiled kernels takes a moment, and nothing need be said of it; compiling takes long enough to wonder.
    notice = threading.Timer(_NOTICE_AFTER_SECONDS, logger.info, [_NOTICE])
    notice.start()
    try:
        warm_up_model(spec)
    finally:
        notice.cancel()


def _with_objects(config: Config, graph: Graph | None, model: nn.Module | None, prepared: PreparedRun) -> Config:
    """Returns the configuration with the objects that were given in place of what it named."""
    if model is not None:
        config = dataclasses.replace(config, model=GivenModel.of(model))
    if graph is not None:
        source = given_source(graph, prepared.inputs["checksum"])
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, source=source))
    return config


def tell_kept_model(config: Config, communicator: Communicator) -> None:
    """Logs which file of a run folder is executed."""
    if communicator.rank == 0 and isinstance(config.model, OwnModel):
        logger.info("%s", config.model.describe_origin())
    _tell_of_change(config, communicator)


def _tell_of_change(config: Config, communicator: Communicator) -> None:
    if communicator.rank == 0 and isinstance(config.model, OwnModel) and config.model.changed_since is not None:
        logger.warning(
            "%s is not the code that this configuration was made with (sha256 %s then, %s now).",
            config.model.code.path,
            config.model.changed_since[:12],
            config.model.sha256[:12],
        )


def _check_no_reverse_edges(config: Config, graph: Graph | None) -> None:
    if graph is not None and config.data.undirected:
        raise ConfigError(
            "data.undirected is for data that is loaded, but a graph was given, which is trained on as it is. Leave "
            "it out, and give a graph that has its reverse edges: laconic.load(..., add_reverse_edges=True)."
        )


def _with_absolute_source(config: Config) -> Config:
    data = dataclasses.replace(config.data, source=absolute_source(config.data.source))
    return dataclasses.replace(config, data=data)


def continued_config(folder: RunFolder, layers: Sequence[Layer]) -> Config:
    """Returns the settings of a run that goes on; raises ConfigError if some are to change that may not."""
    before = _in_present_words(folder.config())
    after = _with_absolute_source(resolve([as_layer(before), *layers], kept=folder.model_path))
    if after.training.evaluate_every == "auto":
        # The number that it stood for when the run began, however many epochs there are now.
        training = dataclasses.replace(after.training, evaluate_every=before.training.evaluate_every)
        after = dataclasses.replace(after, training=training)
    changed = differences(before, after)
    if changed:
        raise ConfigError(
            f"A resumed run goes on with its own settings, but these differ from those of {folder.path}: "
            f"{'; '.join(changed)}. Leave them out, or start a new run. Only training.epochs may grow."
        )
    return after


def _in_present_words(config: Config) -> Config:
    """Returns the settings of an earlier run with its strategy as it is written now."""
    strategy = resumed_spec(config.training.strategy)
    return dataclasses.replace(config, training=dataclasses.replace(config.training, strategy=strategy))


def _with_strategy(config: Config, communicator: Communicator) -> Config:
    """Returns the settings with the strategy that auto stands for, and says which one trains."""
    chosen = strategy_for(config.training.strategy, communicator.num_ranks)
    _tell_strategy(chosen, communicator, "by default" if chosen != config.training.strategy else "")
    return dataclasses.replace(config, training=dataclasses.replace(config.training, strategy=chosen))


def _for_ranks(config: Config, communicator: Communicator) -> Config:
    """Lets a run that began on one rank go on on several: both strategies give the same."""
    if communicator.num_ranks == 1 or config.training.strategy != "single":
        _tell_strategy(config.training.strategy, communicator, "")
        return config
    config = dataclasses.replace(config, training=dataclasses.replace(config.training, strategy="auto"))
    return _with_strategy(config, communicator)


def _tell_strategy(strategy: str, communicator: Communicator, reason: str) -> None:
    if communicator.rank == 0:
        how = (type(parse_strategy(strategy)).__doc__ or "").partition("\n")[0].strip()
        where = "1 rank" if communicator.num_ranks == 1 else f"{communicator.num_ranks} ranks"
        logger.info("Strategy %s on %s%s. %s", strategy, where, f", {reason}" if reason else "", how)


def _warn_of_threads(before: int | None) -> None:
    now = torch.get_num_threads()
    if before not in (None, now):
        logger.warning(
            "The run used %s threads before and uses %s now: sums may round differently. "
            "For the very same numbers set run.threads=%s.",
            before,
            now,
            before,
        )


def _check_inputs(path: Path, snapshot: Snapshot, inputs: dict[str, Any]) -> None:
    # What a checkpoint does not know, it was written before there was such a thing.
    before = {**inputs, **snapshot.notes.get("inputs", {})}
    changed = [f"{key}: {before[key]} -> {value}" for key, value in inputs.items() if before[key] != value]
    if changed:
        raise CheckpointError(
            f"The graph is not the one that {path} was trained on: {'; '.join(changed)}. Restore it or start a new run."
        )

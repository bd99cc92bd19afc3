"""What can be refused before ranks are started: settings, names and paths. Ranks check it again, and the rest."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from laconic.datasets import check_source
from laconic.errors import ConfigError
from laconic.models import GivenModel
from laconic.session.data import check_is_kept, check_undirected
from laconic.store import looks_like_store, open_store
from laconic.strategies import parse_strategy, strategy_for
from laconic.trainer.batches import check_batches
from laconic.trainer.checkpoint import Checkpoints, Which
from laconic.trainer.config import Config
from laconic.trainer.config_file import Layer, resolve
from laconic.trainer.predict import check_output
from laconic.trainer.run_folder import RunFolder, check_target
from laconic.trainer.start import continued_config


def check_start(layers: Sequence[Layer], num_ranks: int) -> None:
    """Raises what ranks that start with these settings would refuse."""
    config = resolve(layers)
    check_target(config)
    _check_model(config)
    check_strategy(config, num_ranks)
    check_undirected(config.data.source, config.data.undirected)
    _check_data(config.data.source, num_ranks)


def check_resume(path: Path, layers: Sequence[Layer], num_ranks: int) -> None:
    """Raises what ranks that resume this run would refuse."""
    folder = RunFolder.open(path)
    folder.check_is_writable()
    config = continued_config(folder, layers)
    _check_model(config)
    if config.training.strategy == "single" and num_ranks > 1:
        # A run on one rank goes on on several with what auto stands for there.
        config = replace(config, training=replace(config.training, strategy="auto"))
    check_strategy(config, num_ranks)
    _check_data(config.data.source, num_ranks)
    Checkpoints(folder.checkpoints_path).load("last")


def check_predict(path: Path, out: Path, *, source: str | None, which: Which, num_ranks: int) -> None:
    """Raises what ranks that predict with this run would refuse."""
    check_output(out)
    folder = RunFolder.open(path)
    config = folder.config()
    _check_model(config)
    _check_data(source or config.data.source, num_ranks)
    Checkpoints(folder.checkpoints_path).load(which)


def check_strategy(config: Config, num_ranks: int) -> None:
    """Raises ConfigError, alike on all ranks, for a strategy that cannot train with these settings on so many."""
    training = replace(config.training, strategy=strategy_for(config.training.strategy, num_ranks))
    strategy = parse_strategy(training.strategy)
    strategy.check_ranks(num_ranks)
    check_batches(training, strategy, num_hops=config.model.num_hops)


def _check_model(config: Config) -> None:
    if isinstance(config.model, GivenModel):
        # It raises, saying what to give.
        config.model.build(0, 0)


def _check_data(source: str, num_ranks: int) -> None:
    check_is_kept(source)
    if not looks_like_store(source):
        check_source(source)
        return
    num_chunks = open_store(source).num_chunks
    if num_chunks < num_ranks:
        raise ConfigError(
            f"{source} has {num_chunks} chunks, and each of the {num_ranks} ranks needs one at least. Run on 1 to "
            f"{num_chunks} ranks, or write it again with `laconic partition ... --parts {num_ranks}`."
        )

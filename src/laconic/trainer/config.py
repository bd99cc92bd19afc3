"""The settings of a run, by section. Each field is followed by its own explanation.

Settings come from, each over the one before: the defaults here, a TOML file (`--config`), the command's flags, and
`--set section.key=value`. What came out of it is saved as `config.json` in the run folder. Reading and merging is in
`config_file.py`; this file knows only what a sound configuration is.

    Config(data=DataConfig(source="cora"), model=parse_model("gcn(hidden=16)"))
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Literal, final

from laconic.errors import ConfigError
from laconic.models import ModelSpec
from laconic.models.gcn import Gcn
from laconic.strategies import present_spec


@final
@dataclass(frozen=True, slots=True)
class DataConfig:
    """The graph."""

    source: str = "sbm"
    """A built-in graph or a spec of one ("sbm(nodes=5000)"), a file or folder of data, or a store."""
    normalise_features: Literal["auto", "row", "none"] = "auto"
    """row: divide each node's features by their sum. auto: row for bags of words (none below 0, most of them 0) with
    few training nodes (at least four features for each); none otherwise."""
    undirected: bool = False
    """Whether each edge gets its reverse: for an undirected graph whose edges are listed once. Not for a store."""


@final
@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How the model learns. Every field here changes the result."""

    strategy: str = "auto"
    """How ranks learn together: single, exchange, gradient_only, full_graph or grappa, with settings of its own;
    auto: single on one rank and exchange, which is exact too, on several."""
    epochs: int = 200
    """Passes over the training nodes. The only field here that a resumed run may change: it may grow."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """The rule that turns gradients into steps: adam, adamw or sgd."""
    lr: float = 0.01
    """Learning rate: larger learns faster, and diverges sooner."""
    weight_decay: float = 5e-4
    """Pull of every weight towards 0: larger fits the training nodes less closely."""
    momentum: float = 0.9
    """Share of the last step that sgd repeats; the other optimizers do not use it."""
    batch_size: int = 0
    """Training nodes per step; 0 trains on the whole graph at once, one step per epoch."""
    fanouts: tuple[int, ...] = ()
    """Neighbours drawn per node at each hop from the batch, the nearest first; -1 draws all. Empty: 10 at each hop."""
    metric: Literal["auto", "accuracy", "micro_f1", "roc_auc"] = "auto"
    """The score: accuracy, micro_f1, roc_auc, or auto: accuracy for one class per node, micro_f1 for several labels."""
    evaluate_every: int | Literal["auto"] = "auto"
    """Epochs between scores; the last epoch always has one, also where training stops early. auto: a twentieth of the
    epochs, from 5 to 20; with patience, so few that at least four scores fall into it."""
    patience: int = 0
    """Epochs without a better validation score after which training stops; 0 never stops early."""
    seed: int = 0
    """Decides first weights, dropout, batches, samples and torch's own generator; the same seed gives the same run."""

    def __post_init__(self) -> None:
        # Ranks and run folders compare the settings as text.
        object.__setattr__(self, "strategy", present_spec(self.strategy))
        _check_at_least("training.epochs", self.epochs, 1)
        _check_at_least("training.batch_size", self.batch_size, 0)
        if self.evaluate_every != "auto":
            _check_at_least("training.evaluate_every", self.evaluate_every, 1)
        _check_at_least("training.patience", self.patience, 0)
        _check_at_least("training.seed", self.seed, 0)
        if any(fanout < 1 and fanout != -1 for fanout in self.fanouts):
            raise ConfigError(
                f"training.fanouts should hold numbers of 1 or more, or -1 for all; got {list(self.fanouts)}."
            )
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"training.lr should be above 0, such as 0.01; got {self.lr}.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigError(f"training.weight_decay should be 0 or more; got {self.weight_decay}.")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"training.momentum should be at least 0 and below 1; got {self.momentum}.")
        if self.fanouts and not self.batch_size:
            raise ConfigError(
                f"training.fanouts is {list(self.fanouts)}, but training.batch_size is 0: the whole graph is trained "
                f"on at once and nothing is drawn. Set training.batch_size, or leave fanouts out."
            )

    @property
    def evaluation_interval(self) -> int:
        """Epochs between scores: `evaluate_every`, or the number that auto stands for.

        It does not depend on the number of ranks: the best epoch is chosen among the same ones on one and on many.
        An evaluation moves half of the rows of an exact step. Over a multiple of 5 epochs, a score every 5 is at most
        1/11 of an exact run's traffic; a short run that ends between two scores has one more and a larger share
        (docs/decisions/0006-training-defaults.md).
        """
        if self.evaluate_every != "auto":
            return self.evaluate_every
        interval = min(20, max(5, self.epochs // 20))
        return min(interval, max(1, self.patience // 4)) if self.patience else interval


@final
@dataclass(frozen=True, slots=True)
class RunConfig:
    """How the run is carried out. No field here changes the result, up to rounding when `threads` differs."""

    folder: str = ""
    """The run folder; empty makes runs/<graph>-<model>-<number>."""
    threads: int = 0
    """Threads for torch and the kernels; 0 leaves torch's choice."""
    batch_workers: int = 1
    """Threads that draw mini-batches ahead of training."""
    checkpoint_every: int = 10
    """Epochs between checkpoints: what a crash may cost. The end and an interrupt always leave one."""
    tensorboard: bool = True
    """Whether to write TensorBoard events too."""

    def __post_init__(self) -> None:
        _check_at_least("run.threads", self.threads, 0)
        _check_at_least("run.batch_workers", self.batch_workers, 1)
        _check_at_least("run.checkpoint_every", self.checkpoint_every, 1)


@final
@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelSpec = field(default_factory=Gcn)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    run: RunConfig = field(default_factory=RunConfig)


def with_fixed_interval(config: Config) -> Config:
    """Returns the settings with a number for `training.evaluate_every`, which a resumption with more epochs keeps."""
    training = dataclasses.replace(config.training, evaluate_every=config.training.evaluation_interval)
    return dataclasses.replace(config, training=training)


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} should be {least} or more; got {value}.")

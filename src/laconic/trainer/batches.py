"""What the steps of an epoch train on: the whole graph at once, or mini-batches of sampled neighbours.

Both give Batches in an order that depends on (seed, epoch) alone, so a run can go on in the middle of an epoch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from torch import Tensor

from laconic.errors import ConfigError
from laconic.graph import Graph, Shard
from laconic.graph.sampling import BatchStream, NeighbourSampler, epoch_batches
from laconic.session import Session
from laconic.specs import split_spec
from laconic.strategies.base import Placed, Strategy
from laconic.trainer.config import Config, TrainingConfig

DEFAULT_FANOUT = 10


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """What one step trains on.

    Args:
        shard: the rows and edges the model is called with.
        num_rows: rows that the loss is a mean over, on all ranks together.
        is_drawn: whether it is a sample, and not what the model is attached to.
        wait_seconds: how long training waited for it.
        factors: what the loss of each training row of a sample is multiplied by; None: 1.
    """

    shard: Shard
    num_rows: int
    is_drawn: bool
    wait_seconds: float = 0.0
    factors: Tensor | None = None

    @property
    def is_empty(self) -> bool:
        """Whether this rank has nothing to train on in this step."""
        return self.shard.num_owned == 0


class Batches(ABC):
    """The batches of every epoch."""

    num_steps: int
    """Steps per epoch."""

    @abstractmethod
    def of_epoch(self, epoch: int, shard: Shard, start_step: int = 0) -> Generator[Batch, None, None]:
        """Yields the batches of `epoch`, without the first `start_step` of them. Close it if it is left early.

        Args:
            shard: what this rank trains on in this epoch.
        """


@final
class WholeGraph(Batches):
    """One step per epoch, over every training row.

    Args:
        num_train: training rows of all ranks.
    """

    def __init__(self, num_train: int) -> None:
        self.num_steps = 1
        self._num_train = num_train

    def of_epoch(self, epoch: int, shard: Shard, start_step: int = 0) -> Generator[Batch, None, None]:
        yield Batch(shard, self._num_train, is_drawn=False)


@final
class MiniBatches(Batches):
    """Training nodes in a new order each epoch, `batch_size` at a time, with sampled neighbours.

    Args:
        graph: where to draw from.
        batch_size, fanouts, seed: as in TrainingConfig.
        num_workers: threads that draw ahead of training.
    """

    def __init__(
        self, graph: Graph, *, batch_size: int, fanouts: tuple[int, ...], seed: int, num_workers: int = 1
    ) -> None:
        rows, sampler = graph.train_mask.nonzero().squeeze(1), NeighbourSampler(graph, fanouts, seed=seed)
        self._draw = partial(epoch_batches, sampler, rows, batch_size=batch_size, num_workers=num_workers)
        self.num_steps = -(-len(rows) // batch_size)

    def of_epoch(self, epoch: int, shard: Shard, start_step: int = 0) -> Generator[Batch, None, None]:
        with closing(self._draw(epoch=epoch, start_step=start_step)) as drawn:
            for batch, waited in _with_waits(drawn):
                yield Batch(batch, batch.num_owned, is_drawn=True, wait_seconds=waited)


@final
class RankBatches(Batches):
    """Mini-batches of several ranks, each of its own training nodes; equal numbers of steps on all of them.

    Args:
        session: whose worker says what to draw from in each epoch.
        train_rows: the training rows of this rank, by number.
        batch_size: most rows of a rank in one step.
        fanouts, seed, num_workers: as in MiniBatches.
    """

    def __init__(
        self,
        session: Session,
        train_rows: Tensor,
        *,
        batch_size: int,
        fanouts: tuple[int, ...],
        seed: int,
        num_workers: int = 1,
    ) -> None:
        self._session, communicator = session, session.communicator
        self._rows = train_rows
        self._draw = partial(epoch_batches, rows=train_rows, batch_size=batch_size, num_workers=num_workers)
        self._fanouts, self._seed = fanouts, seed
        with communicator.ledger.phase("setup"):
            counts = communicator.all_gather(torch.tensor([len(train_rows)])).flatten()
        self.num_steps = -(-int(counts.max()) // batch_size)
        # Known to all ranks: what a step is a mean over costs no message.
        parts = torch.stack(
            [counts // self.num_steps + (step < counts % self.num_steps) for step in range(self.num_steps)]
        )
        self._num_rows = parts.sum(1).tolist()
        self._num_train = int(counts.sum())

    def of_epoch(self, epoch: int, shard: Shard, start_step: int = 0) -> Generator[Batch, None, None]:
        whole = self._session.worker.drawn_from
        sampler = NeighbourSampler(whole, self._fanouts, seed=self._seed)
        factor_of = self._factors(whole)
        drawn = self._draw(sampler, num_batches=self.num_steps, epoch=epoch, start_step=start_step)
        with closing(drawn):
            for step, (batch, waited) in enumerate(_with_waits(drawn), start=start_step):
                factors = None
                if factor_of is not None:
                    factors = factor_of[torch.searchsorted(self._ids, batch.node_ids[: batch.num_owned])]
                yield Batch(batch, self._num_rows[step], True, waited, factors)

    def _factors(self, whole: Shard) -> Tensor | None:
        """Returns what the losses of this rank's training rows are multiplied by, by rising id."""
        shares = self._session.worker.row_factors
        if shares is None:
            return None
        self._ids, order = torch.sort(whole.node_ids[self._rows])
        return shares[order] * self._num_train


def _with_waits(drawn: BatchStream) -> Iterator[tuple[Shard, float]]:
    """Yields each batch with the seconds that training waited for it."""
    before = 0.0
    for batch in drawn:
        yield batch, drawn.wait_seconds - before
        before = drawn.wait_seconds


def check_batches(training: TrainingConfig, strategy: Strategy, *, num_hops: int | None) -> None:
    """Raises ConfigError unless the strategy can draw the mini-batches that the settings ask for, if any.

    Args:
        num_hops: how many hops the model looks; None where it is not known, as of a model of the user's own.
    """
    if not training.batch_size:
        return
    is_single = split_spec(training.strategy, family="strategy")[0] == "single"
    if not strategy.draws_batches and not is_single:
        raise ConfigError(
            f"training.batch_size is {training.batch_size}, but the strategy {training.strategy} trains on the whole "
            f"graph in each step. Leave it out, or use the strategy gradient_only (without keep=sums, turns and "
            f"reach), grappa (without correction=degree or sweep), or single on one rank."
        )
    fanouts = training.fanouts
    if not fanouts and num_hops is None:
        raise ConfigError(
            "training.batch_size is set, but how many hops a model of your own looks is not known. Set "
            "training.fanouts to one number per convolution, such as [10, 10]."
        )
    if fanouts and num_hops is not None and len(fanouts) != num_hops:
        raise ConfigError(
            f"training.fanouts should have one number per hop of the model, {num_hops}; got {list(fanouts)}."
        )


def choose_batches(config: Config, session: Session, placed: Placed, *, num_hops: int | None) -> Batches:
    """Returns the batches that the configuration asks for.

    Args:
        placed: what this rank holds of the graph.
        num_hops: how many hops the model looks; None where it is not known, as of a model of the user's own.
    """
    training, strategy = config.training, session.strategy
    if not training.batch_size:
        return WholeGraph(placed.num_train)
    check_batches(training, strategy, num_hops=num_hops)
    # A model that looks at no neighbour gets one that it does not look at.
    fanouts = training.fanouts or (DEFAULT_FANOUT,) * (num_hops or 0) or (1,)
    build: Callable[..., Batches]
    if strategy.draws_batches:
        build = partial(RankBatches, session, placed.shard.train_rows)
    else:
        assert isinstance(session.data, Graph)
        build = partial(MiniBatches, session.data)
    return build(
        batch_size=training.batch_size,
        fanouts=fanouts,
        seed=training.seed,
        num_workers=config.run.batch_workers,
    )

"""Worker: the state of one model's training on one rank. This docstring is the contract.

A strategy (`laconic.strategies.base`) starts a worker. A session drives it, on every rank:

    for epoch in ...:
        shard = worker.start_epoch(epoch)        # the rows to train on in this epoch
        loss = worker.share_loss(total, weight)  # the loss of all ranks
        loss.backward()                          # p.grad is then the same on every rank
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn

from laconic.attach import Attachment
from laconic.gradients.shared import check_weight
from laconic.graph import GraphChange, Shard
from laconic.records import CoverageRecord, LedgerRecord


class Worker:
    """Trains the attached model in one process that holds the whole graph.

    Workers of several ranks extend it.
    """

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment

    @property
    def model(self) -> nn.Module:
        """The model that is trained."""
        return self.attachment.model

    @property
    def shard(self) -> Shard:
        """The rows that this rank trains on now."""
        return self.attachment.shard

    @property
    def num_train(self) -> int:
        """Training nodes of the whole graph, over which the loss is a mean."""
        return len(self.shard.train_rows)

    def expect_epochs(self, num_epochs: int) -> None:
        """Told before the first epoch how many there will be, where that is known."""

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        """Moves on to step `step` of `epoch` (the first is 1); returns the shard to train on."""
        self.attachment.start_epoch(epoch, step)
        return self.shard

    @property
    def row_factors(self) -> Tensor | None:
        """Share of each training row in the mean of this epoch; None: 1 / num_train for all."""
        return None

    def share_loss(self, total: Tensor, weight: float | None = None) -> Tensor:
        """Returns the sum of the ranks' totals over the sum of their weights.

        All ranks call it together. When `backward` returns, every `p.grad` of the model is the
        gradient of the global loss.

        Args:
            total: the sum of the losses of this rank's rows.
            weight: what these rows weigh; None: the ranks' totals are added up and not divided.
        """
        if weight is None:
            return total
        check_weight(weight)
        return total / weight

    @property
    def drawn_from(self) -> Shard:
        """The shard that mini-batches of this epoch are drawn from, the rank's own rows first."""
        return self.shard

    def using_batch(self, batch: Shard) -> AbstractContextManager[Shard]:
        """Inside, the attached model works on `batch`, a mini-batch."""
        return self.attachment.using(batch)

    def change(self, change: GraphChange) -> Shard:
        """Changes the graph between two steps, and returns the shard to go on with.

        All ranks call it together.
        """
        raise NotImplementedError("strategy.changes_graph tells who can")

    def state(self) -> dict[str, Any]:
        """Returns the state beside model and optimizer that a checkpoint holds, as JSON values."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes back what `state` gave."""

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Inside, the model is the same on all ranks, to be saved; all ranks call it together."""
        yield

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors beside model and optimizer that a checkpoint holds.

        They are the same on all ranks.
        """
        return {}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Takes back what `tensors` gave."""

    def take_records(self) -> list[CoverageRecord]:
        """Returns the coverage of the epochs since the last call, where ranks miss neighbours."""
        return []

    def predict_traffic(self, epoch: int = 1) -> list[LedgerRecord]:
        """Returns this rank's traffic exactly as its ledger will count it.

        Rows of epoch 0 come once. Rows of `epoch` are the cost of that epoch, with one step and one
        evaluation; the adding up of scores is left out. Every epoch costs the same unless a
        schedule says otherwise.
        """
        return []

    def exact_traffic(self) -> list[LedgerRecord]:
        """Returns the traffic of the same parts if all rows were exchanged as they are."""
        return []

"""Run: a run under way, how it is saved, and how it is taken up again."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import torch
from torch import nn

from laconic.comm.gather import gather_texts
from laconic.errors import CheckpointError
from laconic.gradients.same_weights import check_same_weights
from laconic.records import EpochRecord, LedgerRecord, format_record, parse_record
from laconic.session import Session
from laconic.trainer.config import Config
from laconic.trainer.interrupts import Interrupts
from laconic.trainer.outputs import Outputs
from laconic.trainer.prepared import PreparedRun
from laconic.trainer.snapshot import Snapshot, copy_model, copy_optimizer, load_model, load_optimizer
from laconic.trainer.state import TrainingState

_OF_STRATEGY = "strategy."


@final
@dataclass
class Run:
    """A run under way. `loop.py` says in which order its parts act."""

    config: Config
    prepared: PreparedRun
    outputs: Outputs
    interrupts: Interrupts
    state: TrainingState
    unsaved_best: Snapshot | None = None
    """The best model so far, until a checkpoint takes it to the disk."""
    untold_traffic: list[LedgerRecord] = field(default_factory=list)
    """This rank's rows of the ledger, until rank 0 writes them down."""
    signal: int | None = None
    """Number of the signal that some rank was told to end by."""

    def __post_init__(self) -> None:
        self._first_epoch = self.state.epoch + 1

    @property
    def model(self) -> nn.Module:
        return self.session.model

    @property
    def session(self) -> Session:
        return self.prepared.session

    def is_interrupted(self) -> bool:
        """Whether any rank was told to end; all ranks ask together, so that they end at the same step."""
        communicator = self.session.communicator
        with communicator.ledger.phase("records"):
            number = communicator.all_reduce(torch.tensor([self.interrupts.signal or 0]), op="max")
        self.signal = int(number) or None
        return self.signal is not None

    def count_traffic(self) -> None:
        """Closes the ledger's account of the epoch that has ended, or of the steps taken of the one under way."""
        epoch = self.state.epoch + bool(self.state.step)
        self.untold_traffic += self.session.communicator.ledger.take(epoch)
        if self.session.communicator.num_ranks > 1 and self.state.epoch == self._first_epoch:
            # Nobody should have to wait for a checkpoint to see what travels.
            self._tell_traffic()

    def keep_as_best(self, record: EpochRecord) -> None:
        """Remembers the model as it is now as the best one."""
        self.state.best = record
        self.unsaved_best = Snapshot(record.epoch, 0, copy_model(self.model), notes={"inputs": self.prepared.inputs})

    def save(self) -> None:
        """Writes a checkpoint of this moment, and the best model if the disk does not have it yet."""
        with self.session.worker.settled():
            check_same_weights(self.model, self.session.communicator, consequence=", so no checkpoint is written")
            last = self._snapshot()
        self._tell_traffic()
        self.outputs.display.phase("Writing a checkpoint")
        self.outputs.save(last=last, best=self.unsaved_best)
        self.outputs.display.phase("")
        self.unsaved_best = None

    def _snapshot(self) -> Snapshot:
        tensors, rest = copy_optimizer(self.prepared.optimizer)
        return Snapshot(
            self.state.epoch,
            self.state.step,
            copy_model(self.model),
            # Ours is keyed and needs no state; a user's model may draw from torch's own.
            {
                **tensors,
                **{f"{_OF_STRATEGY}{name}": value for name, value in self.session.worker.tensors().items()},
                "torch_rng": torch.get_rng_state(),
            },
            {
                "inputs": self.prepared.inputs,
                "state": self.state.to_json(),
                "optimizer": rest,
                "strategy": self.session.worker.state(),
            },
        )

    def _tell_traffic(self) -> None:
        communicator = self.session.communicator
        with communicator.ledger.phase("records"):
            texts = gather_texts(communicator, "\n".join(map(format_record, self.untold_traffic)))
        records = [parse_record(line) for text in texts for line in text.splitlines()]
        self.outputs.tell_traffic([record for record in records if isinstance(record, LedgerRecord)])
        self.untold_traffic = []

    def save_best(self) -> None:
        """Writes the best model if the disk does not have it yet, and leaves the last checkpoint as it is."""
        if self.unsaved_best is not None:
            self.outputs.save(last=None, best=self.unsaved_best)
            self.unsaved_best = None


def restore(prepared: PreparedRun, snapshot: Snapshot, where: Path) -> TrainingState:
    """Puts model, optimizer, strategy and torch's random state back to where `snapshot` was taken; returns the rest.

    It writes nothing: a checkpoint that does not fit is refused while the run is still as it was.

    Args:
        where: the checkpoint's folder, for errors.
    """
    worker = prepared.session.worker
    load_model(prepared.session.model, snapshot, where)
    try:
        tensors = dict(snapshot.training)
        torch_rng = tensors.pop("torch_rng")
        of_strategy = {name: tensors.pop(name) for name in list(tensors) if name.startswith(_OF_STRATEGY)}
        load_optimizer(prepared.optimizer, tensors, snapshot.notes["optimizer"])
        worker.load_state(snapshot.notes["strategy"])
        worker.load_tensors({name.removeprefix(_OF_STRATEGY): value for name, value in of_strategy.items()})
        state = TrainingState.from_json(dict(snapshot.notes["state"]))
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where} cannot be continued from: {error}. It was made by another version or model; start a new run."
        ) from error
    torch.set_rng_state(torch_rng)
    return state

"""What each host runs for grids.py: trains a model on a grid of ranks, and says what that took.

    laconic lab --hosts 4 --link 1gbit -- python benchmarks/grids_rank.py STORE gcn 3 1d 2d feature

Rank 0 prints one line: for each grid, a JSON list of what each rank found. Grids take turns, and so do epochs over the
network and epochs that move nothing, so that a noisy moment falls on all of them.
"""

import json
import sys
from pathlib import Path

from exchange_rank import WAYS, Stub, Training, exchanges, num_bytes, num_differences
from laconic.comm import Communicator, Ledger
from laconic.comm.gather import gather_texts
from laconic.launching.join import join_ranks
from laconic.models import parse_model
from laconic.trainer.warm_up import warm_up_model


class Contender:
    """One grid, with a ledger of its own."""

    def __init__(self, communicator: Communicator, source: Path, model_name: str, strategy: str) -> None:
        self._communicator = Communicator(communicator.transport, Ledger(communicator.rank))
        self._training = Training(self._communicator, source, model_name, strategy)
        self._communicator.ledger.take(0)
        plan = getattr(self._training.placed, "plan", None)
        self._chosen = "" if plan is None else str(plan.best.grid)
        predicted = self._training.predict()
        self._of_each_epoch = [row for row in predicted if row.epoch == 1]
        self._training.train()
        self.num_wrong = num_differences(self._communicator.ledger.take(0), predicted)
        self.epochs: list[float] = []
        self.computes: list[float] = []
        self._alone: list[list[dict[str, float]]] = []

    def take_turn(self) -> None:
        self.epochs.append(self._training.train())
        self._rows = self._communicator.ledger.take(0)
        self.num_wrong += num_differences(self._rows, self._of_each_epoch)
        stub = Stub(self._communicator.rank, self._communicator.num_ranks)
        self.computes.append(self._training.train_alone(stub))
        self._alone.append(stub.exchanges)

    def findings(self) -> dict[str, object]:
        return {
            "epochs": self.epochs,
            "computes": self.computes,
            "of epoch": {way: num_bytes(self._rows, way) for way in WAYS},
            "exchanges": exchanges(self._rows, self._alone),
            "num_wrong": self.num_wrong,
            "chosen": self._chosen,
        }


def main(folder: str, model_name: str, num_epochs: str, *strategies: str) -> None:
    communicator = join_ranks()
    with communicator.transport:
        warm_up_model(parse_model(model_name))
        contenders = {text: Contender(communicator, Path(folder), model_name, text) for text in strategies}
        for _ in range(int(num_epochs)):
            for contender in contenders.values():
                contender.take_turn()
        found = {}
        for text, contender in contenders.items():
            findings = gather_texts(communicator, json.dumps(contender.findings()))
            found[text] = [json.loads(each) for each in findings]
        if communicator.rank == 0:
            print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

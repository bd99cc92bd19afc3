"""Session: Laconic under a training loop of your own. Four lines change in a plain PyG loop:

session = laconic.join("cora.npz")
model = session.attach(GCN(1433, 16, 2, 7))
for epoch, shard in session.epochs(200):
    loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, final

from torch import Tensor, nn

from laconic.attach import release
from laconic.comm import Communicator
from laconic.errors import ConfigError
from laconic.gradients.same_weights import check_same_weights
from laconic.gradients.worker import Worker
from laconic.graph import Graph, GraphChange, Shard
from laconic.session.data import Normalisation, check_trainable, prepare_features, prepare_rows
from laconic.session.embeddings import Embeddings, embeddings
from laconic.session.epoch import Epoch, check_takes_model_alone
from laconic.session.evaluate import Evaluation, whole_graph_logits
from laconic.session.objective import session_loss
from laconic.session.predictions import Predictions, gather_predictions
from laconic.store import Manifest, Store
from laconic.strategies.base import ExpectedRun, Placed, Strategy

Model = TypeVar("Model", bound=nn.Module)


@final
class Session:
    """A graph, a strategy (settings alone), and the worker that trains the attached model.

    Used as a context manager, it tells the other ranks when this one fails, and parts from them at the end.
    """

    def __init__(self, data: Graph | Store, strategy: Strategy, seed: int, communicator: Communicator) -> None:
        self.data = data
        self.strategy = strategy
        self.communicator = communicator
        self.normalised: Normalisation | None = None
        """How `place` prepared the features; None: they are as they were."""
        self._seed = seed
        self._worker: Worker | None = None
        self._epoch = 0

    @property
    def rank(self) -> int:
        """Number of this rank; 0 is the one to print and save."""
        return self.communicator.rank

    @property
    def num_features(self) -> int:
        """Features of each node."""
        return self.about.num_features

    @property
    def num_classes(self) -> int:
        """Classes, or labels, that a node may have."""
        return self.about.num_classes

    @property
    def about(self) -> Graph | Manifest:
        """The graph, or what is known of it where ranks hold it together."""
        return self.data if isinstance(self.data, Graph) else self.data.manifest

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.communicator.transport.__exit__(kind, error, trace)

    @property
    def worker(self) -> Worker:
        """Trains the attached model on this rank; `worker.predict_traffic(epoch)` tells what an epoch will cost."""
        if self._worker is None:
            raise ConfigError("There is no model in this session yet. Call session.attach(model) first.")
        return self._worker

    @property
    def model(self) -> nn.Module:
        """The model that is attached."""
        return self.worker.model

    @property
    def shard(self) -> Shard:
        """What this rank trains on now: the shard of the epoch under way, or what `attach` placed before the first."""
        return self.worker.shard

    def place(self, run: ExpectedRun, normalise: str | None = None) -> Placed:
        """Divides the graph among the ranks, which call it together, and returns this rank's part.

        Args:
            run: the model that will be trained on it, and what else is known.
            normalise: how to prepare the features, as `data.normalise_features` says; None leaves them as they are.
        """
        if normalise is not None and isinstance(self.data, Graph):
            self.data, self.normalised = prepare_features(self.data, normalise)
        placed = self.strategy.place(self.data, self.communicator, run)
        if normalise is not None and isinstance(self.data, Store):
            shard, self.normalised = prepare_features(placed.shard, normalise, self.communicator)
            placed = placed.with_features(shard.x, partial(prepare_rows, normalised=self.normalised))
        return placed

    def check(self, placed: Placed, *, is_trained: bool = True) -> None:
        """Raises an error, on all ranks, unless the strategy can train the model on what `place` returned.

        Args:
            is_trained: False is for prediction, which needs no training node.
        """
        if is_trained:
            check_trainable(self.about.name, placed.num_train)
        placed.check()

    def attach(self, model: Model, placed: Placed | None = None) -> Model:
        """Hangs the kernels and keyed dropout on `model`, in place, and returns it.

        Call it with `shard.x` and `shard.edge_index` of the epoch's shard themselves: other tensors run PyG's own code,
        or are refused where ranks share the graph. All ranks call it together, and begin with the weights of rank 0.

        The same model may be attached again, here or in another session: it is detached first.

        Args:
            placed: what `place` returned, if the model was placed and checked already.
        """
        check_takes_model_alone(sys._getframe(1))
        if self._worker is not None and model is self.model:
            self.detach()
        if self._worker is not None and self.communicator.num_ranks > 1:
            raise ConfigError(
                "This session has a model already, and ranks share the gradients of one. Call session.detach() before "
                "the next session.attach(model); to train both together, put them into one module."
            )
        release(model)
        if placed is None:
            placed = self.place(ExpectedRun(model))
            self.check(placed)
        self._worker = placed.start(self._seed)
        return model

    def detach(self) -> nn.Module:
        """Gives the model back as it was before `attach`, with the weights that it has now.

        It then runs PyG's own code, on any graph. The next model begins with the graph as it was joined. All ranks call
        it together.
        """
        model = self.worker.attachment.detach()
        self._worker = None
        return model

    def epochs(self, num_epochs: int) -> Iterator[Epoch]:
        """Yields each epoch, 1 to `num_epochs`, with the shard to train on in it."""
        self.worker.expect_epochs(num_epochs)
        for epoch in range(1, num_epochs + 1):
            yield Epoch(epoch, self.start_epoch(epoch))

    def start_epoch(self, epoch: int, step: int = 0) -> Shard:
        """Moves on to `epoch`, to its step number `step`, and returns the shard to train on in it."""
        worker = self.worker
        # Ranks that are in different epochs are told so.
        self.communicator.ledger.epoch = epoch
        shard = worker.start_epoch(epoch, step)
        self._epoch = epoch
        return shard

    def loss(self, function: Callable[..., Any], out: Tensor, shard: Shard, factors: Tensor | None = None) -> Tensor:
        """Returns the loss over the training nodes of the whole graph, the same on all ranks.

        It is what one process of plain torch gives: function(out[train_mask], y[train_mask]) of all nodes. When
        `backward` of it returns, every gradient is that of this loss. Penalties on weights can be added to it.

        Args:
            function: any loss of torch that takes (out, y): F.cross_entropy, functools.partial(F.cross_entropy,
                weight=w), nn.CrossEntropyLoss(label_smoothing=0.1); or one of your own that takes (out, y) and returns
                one number per node, of which the mean is taken.
            out: the model's outputs, a row for each node that this rank owns.
            factors: what the loss of each training row is multiplied by; by default what the strategy says.
        """
        worker = self.worker
        if factors is None and worker.row_factors is not None:
            # Shares of the mean over all training nodes, which are one over their number where all are alike.
            factors = worker.row_factors * worker.num_train
        part = session_loss(function, out, shard, factors)
        return worker.share_loss(part.total, part.weight)

    def change(self, change: GraphChange) -> Shard:
        """Changes the graph between two steps, and returns the shard to call the model on from now on.

        All ranks call it together with the same change. Only the strategy exchange can.
        """
        worker = self.worker
        if not self.strategy.changes_graph:
            name = type(self.strategy).__module__.rpartition(".")[2]
            raise ConfigError(
                f"The strategy {name} cannot change its graph during a run. Use the strategy exchange, which can, on "
                f"any number of ranks, one included; or write a new store and start again."
            )
        return worker.change(change)

    def evaluate(self, metric: str = "auto") -> dict[str, float]:
        """Returns the score of each split on the whole graph, exactly: {"train": ..., "val": ..., "test": ...}.

        All ranks call it together, also where only one prints. Raises RanksDifferError if they do not hold the same
        model any more.

        Args:
            metric: "accuracy", "micro_f1" or "roc_auc"; "auto" is accuracy, or micro_f1 for a multi-label task.
        """
        model = self.model
        scores = Evaluation(metric, self.shard, self.communicator)(model, self.shard)
        # After it: strategies that keep parts of the model apart have put them together for the scores.
        check_same_weights(model, self.communicator, phase="evaluation", consequence=", so its scores mean nothing")
        return scores

    def predict(self) -> Predictions:
        """Returns what the model says of every node, exactly, by node id: classes and probabilities.

        All ranks call it together. Rank 0 gets the predictions, and the others get empty ones.
        """
        return gather_predictions(
            self.communicator,
            self.data,
            self.shard,
            whole_graph_logits(self.model, self.shard),
            is_multilabel=self.about.is_multilabel,
            epoch=self._epoch,
            class_names=self.about.class_names or (),
        )

    def embeddings(self, layer: str | None = None) -> Embeddings:
        """Returns hidden rows of every node, exactly, by node id: `.node_ids` and `.vectors`.

        All ranks call it together. Rank 0 gets the rows, and the others get none.

        Args:
            layer: a submodule such as "convs.0", whose outputs are wanted. By default the rows that enter the last
                convolution or linear layer that has weights.
        """
        return embeddings(self.model, self.data, self.shard, self.communicator, layer)

"""Session: Laconic under a training loop of your own. Four lines change in a plain PyG loop:

session = laconic.join("cora.npz")
model, shard = session.attach(GCN(1433, 16, 2, 7))
for epoch in session.epochs(200):
    loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
"""

import atexit
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Union, final

from torch import Tensor, nn

from laconic import __version__
from laconic.comm import Communicator
from laconic.datasets import from_pyg
from laconic.errors import ConfigError
from laconic.graph import Graph, GraphChange, Shard
from laconic.launch.agreement import check_agreement
from laconic.launch.join import join_ranks
from laconic.store import Manifest, Store
from laconic.strategies import Strategy, parse_strategy
from laconic.trainer.data import check_trainable, describe_data, open_data
from laconic.trainer.embeddings import Embeddings, embeddings
from laconic.trainer.evaluate import Evaluation, whole_graph_logits
from laconic.trainer.predict import Predictions, gather_predictions

if TYPE_CHECKING:
    from torch_geometric.data import Data

Model = TypeVar("Model", bound=nn.Module)


def join(
    source: Union[str, Path, Graph, "Data"],
    *,
    strategy: str | None = None,
    seed: int = 0,
    communicator: Communicator | None = None,
) -> "Session":
    """Returns a session on a graph. Under torchrun, SLURM or `laconic lab`, all ranks join it together.

    Args:
        source: a dataset name, a file or a store folder (as for `laconic train`), a Graph, or a PyG Data object; of a
            store each of several ranks reads its own chunks only.
        strategy: how ranks learn together; by default "single" on one rank and "compressed_halo", exact, on several.
        seed: keys dropout.
        communicator: how ranks talk, where they were brought together already.
    """
    if communicator is None:
        communicator = join_ranks()
        # A loop without `with` parts from the others when its process ends.
        atexit.register(communicator.transport.close)
    try:
        return _open_session(source, strategy, seed, communicator)
    except BaseException as error:
        # The others wait for this rank: tell them why it will not come.
        communicator.transport.announce_failure(error)
        raise


def _open_session(
    source: Union[str, Path, Graph, "Data"], strategy: str | None, seed: int, communicator: Communicator
) -> "Session":
    if isinstance(source, str | Path):
        data = open_data(str(source), communicator.num_ranks)
    else:
        data = source if isinstance(source, Graph) else from_pyg(source)
    chosen = strategy or ("single" if communicator.num_ranks == 1 else "compressed_halo")
    check_agreement(communicator, {"laconic": __version__, "strategy": chosen, "seed": str(seed)})
    check_agreement(communicator, {f"data.{key}": str(value) for key, value in describe_data(data).items()})
    return Session(data, parse_strategy(chosen), seed, communicator)


@final
class Session:
    """A graph, a strategy, and the model that is attached to them.

    Used as a context manager, it tells the other ranks when this one fails, and parts from them at the end.
    """

    def __init__(self, data: Graph | Store, strategy: Strategy, seed: int, communicator: Communicator) -> None:
        self.data = data
        self.strategy = strategy
        self.communicator = communicator
        self._seed = seed
        self._shard: Shard | None = None
        self._model: nn.Module | None = None
        self._epoch = 0

    @property
    def rank(self) -> int:
        """Number of this rank; 0 is the one to print and save."""
        return self.communicator.rank

    @property
    def num_features(self) -> int:
        """Features of each node."""
        return self._about.num_features

    @property
    def num_classes(self) -> int:
        """Classes, or labels, that a node may have."""
        return self._about.num_classes

    @property
    def _about(self) -> Graph | Manifest:
        return self.data if isinstance(self.data, Graph) else self.data.manifest

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.communicator.transport.__exit__(kind, error, trace)

    def attach(self, model: Model) -> tuple[Model, Shard]:
        """Hangs the kernels and keyed dropout on `model`, in place, and returns it with the shard to call it on.

        Call it with `shard.x` and `shard.edge_index` themselves: other tensors run PyG's own code, or are refused where
        ranks share the graph. All ranks call it together, and begin with the weights of rank 0.
        """
        self.strategy.expect_model(model)
        shard = self.strategy.place(self.data, self.communicator)
        check_trainable(self._about.name, self.strategy.num_train)
        self.strategy.check(model, shard)
        self._shard = self.strategy.attach(model, shard, seed=self._seed).shard
        self._model = model
        return model, self._shard

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields 1 to `num_epochs`, telling the strategy when each begins."""
        self._attached()
        self.strategy.expect_epochs(num_epochs)
        for epoch in range(1, num_epochs + 1):
            self.strategy.start_epoch(epoch)
            self._epoch = epoch
            yield epoch

    def loss(self, function: Callable[..., Tensor], out: Tensor, shard: Shard) -> Tensor:
        """Returns the mean of `function` over the training nodes of the whole graph, the same on all ranks.

        When `backward` of it returns, every gradient is that of this mean.

        Args:
            function: a loss that takes (out, y, reduction="sum"), such as torch.nn.functional.cross_entropy.
            out: the model's outputs for every row of `shard`.
        """
        rows = shard.train_rows
        factors = self.strategy.row_factors
        if factors is None:
            total = function(out[rows], shard.y[rows], reduction="sum") / self.strategy.num_train
        else:
            losses = function(out[rows], shard.y[rows], reduction="none")
            if not isinstance(losses, Tensor) or losses.shape[:1] != rows.shape:
                raise ConfigError(
                    f"This strategy weighs the loss of each training node, and so needs one number for each of the "
                    f"{len(rows)} from the loss function with reduction='none'; it gave "
                    f"{getattr(losses, 'shape', type(losses).__name__)}. Use such a loss, or correction=none."
                )
            total = (losses.flatten(1).sum(1) if losses.dim() > 1 else losses).mul(factors.to(losses.dtype)).sum()
        return self.strategy.share_loss(total)

    def change(self, change: GraphChange) -> Shard:
        """Changes the graph between two steps, and returns the shard to call the model on from now on.

        All ranks call it together with the same change. Of the strategies, compressed_halo can.
        """
        self._attached()
        self._shard = self.strategy.change(change)
        return self._shard

    def evaluate(self, metric: str = "auto") -> dict[str, float]:
        """Returns the score of each split on the whole graph, exactly: {"train": ..., "val": ..., "test": ...}.

        All ranks call it together, also where only one prints.

        Args:
            metric: "accuracy", "micro_f1" or "roc_auc"; "auto" is accuracy, or micro_f1 for a multi-label task.
        """
        model, shard = self._attached()
        return Evaluation(metric, shard, self.communicator)(model)

    def predict(self) -> Predictions:
        """Returns what the model says of every node, exactly, by node id: classes and probabilities.

        All ranks call it together. Rank 0 gets the predictions, and the others get empty ones.
        """
        model, shard = self._attached()
        return gather_predictions(
            self.communicator,
            shard,
            whole_graph_logits(model, shard),
            is_multilabel=self._about.is_multilabel,
            epoch=self._epoch,
        )

    def embeddings(self, layer: str | None = None) -> Embeddings:
        """Returns hidden rows of every node, exactly, by node id: `.node_ids` and `.vectors`.

        All ranks call it together. Rank 0 gets the rows, and the others get none.

        Args:
            layer: a submodule such as "convs.0", whose outputs are wanted. By default the rows that enter the last
                convolution or linear layer that has weights.
        """
        model, shard = self._attached()
        return embeddings(model, shard, self.communicator, layer)

    def _attached(self) -> tuple[nn.Module, Shard]:
        if self._model is None or self._shard is None:
            raise ConfigError("There is no model in this session yet. Call session.attach(model) first.")
        return self._model, self._shard

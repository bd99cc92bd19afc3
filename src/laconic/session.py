"""Session: Laconic under a training loop of your own. Four lines change in a plain PyG loop:

session = laconic.join("cora.npz")
model, shard = session.attach(GCN(1433, 16, 2, 7))
for epoch in session.epochs(200):
    loss = session.loss(F.cross_entropy, model(shard.x, shard.edge_index), shard)
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Union, final

from torch import Tensor, nn

from laconic.datasets import from_pyg
from laconic.errors import ConfigError
from laconic.graph import Graph, Shard
from laconic.strategies import Strategy, parse_strategy
from laconic.trainer.data import load_graph
from laconic.trainer.evaluate import Evaluation

if TYPE_CHECKING:
    from torch_geometric.data import Data

Model = TypeVar("Model", bound=nn.Module)


def join(source: Union[str, Path, Graph, "Data"], *, strategy: str = "single", seed: int = 0) -> "Session":
    """Returns a session on a graph.

    Args:
        source: a dataset name, a file or a store folder (as for `laconic train`), a Graph, or a PyG Data object.
        strategy: how ranks learn together, such as "single".
        seed: keys dropout.
    """
    if isinstance(source, str | Path):
        graph = load_graph(str(source))
    else:
        graph = source if isinstance(source, Graph) else from_pyg(source)
    return Session(graph, parse_strategy(strategy), seed)


@final
class Session:
    """A graph, a strategy, and the model that is attached to them."""

    def __init__(self, graph: Graph, strategy: Strategy, seed: int) -> None:
        self.graph = graph
        self.strategy = strategy
        self._seed = seed
        self._num_train = int(graph.train_mask.sum())
        self._shard: Shard | None = None
        self._model: nn.Module | None = None

    def attach(self, model: Model) -> tuple[Model, Shard]:
        """Hangs the kernels and keyed dropout on `model`, in place, and returns it with the shard to call it on.

        Call it with `shard.x` and `shard.edge_index` themselves: other tensors run PyG's own code.
        """
        shard = Shard.whole(self.graph)
        self.strategy.check(model, shard)
        self._shard = self.strategy.attach(model, shard, seed=self._seed).shard
        self._model = model
        return model, self._shard

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Yields 1 to `num_epochs`, telling the strategy when each begins."""
        self._attached()
        for epoch in range(1, num_epochs + 1):
            self.strategy.start_epoch(epoch)
            yield epoch

    def loss(self, function: Callable[..., Tensor], out: Tensor, shard: Shard) -> Tensor:
        """Returns the mean of `function` over the training nodes of the whole graph.

        Args:
            function: a loss that takes (out, y, reduction="sum"), such as torch.nn.functional.cross_entropy.
            out: the model's outputs for every row of `shard`.
        """
        rows = shard.train_rows
        return function(out[rows], shard.y[rows], reduction="sum") / self._num_train

    def evaluate(self, metric: str = "auto") -> dict[str, float]:
        """Returns the score of each split on the whole graph, exactly: {"train": ..., "val": ..., "test": ...}.

        Args:
            metric: "accuracy", "micro_f1" or "roc_auc"; "auto" is accuracy, or micro_f1 for a multi-label task.
        """
        model, shard = self._attached()
        return Evaluation(metric, shard)(model)

    def _attached(self) -> tuple[nn.Module, Shard]:
        if self._model is None or self._shard is None:
            raise ConfigError("There is no model in this session yet. Call session.attach(model) first.")
        return self._model, self._shard

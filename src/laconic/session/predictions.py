"""Predictions: what a model says of every node, under the ids that the nodes had in their data."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from laconic.comm import Communicator
from laconic.graph import Graph, Shard
from laconic.session.by_node import gather_by_node
from laconic.session.evaluate import predicted, probabilities
from laconic.store import Store

# Shapes: N nodes, C classes or labels


@final
@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model says of every node.

    Args:
        node_ids: the nodes' ids in their data, numbers or text, in the order of their numbers, (N,).
        classes: the likeliest class (N,), or 0 and 1 for each label (N, C).
        probabilities: of each class or label, float32, (N, C).
        epoch: the epoch that the model's weights are of.
        class_names: the text of each class or label, by its number, where the model was trained on such.
    """

    node_ids: NDArray[Any]
    classes: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    epoch: int
    class_names: tuple[str, ...] = ()

    @property
    def is_multilabel(self) -> bool:
        return self.classes.ndim == 2


def gather_predictions(
    communicator: Communicator,
    data: Graph | Store,
    shard: Shard,
    logits_NC: Tensor,
    *,
    is_multilabel: bool,
    epoch: int,
    class_names: tuple[str, ...],
) -> Predictions:
    """Returns what a model's outputs say of every node, on rank 0; the others get none."""
    node_ids, logits_NC = gather_by_node(communicator, data, shard, logits_NC)
    return Predictions(
        node_ids=node_ids,
        classes=predicted(logits_NC, is_multilabel=is_multilabel).numpy(),
        probabilities=probabilities(logits_NC, is_multilabel=is_multilabel).float().numpy(),
        epoch=epoch,
        class_names=class_names,
    )

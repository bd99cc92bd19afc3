"""Scores on the whole graph: one exact forward pass in eval mode, never over a sampled neighbourhood.

scores = Evaluation("accuracy", shard)(attachment.model)       # {"train": 0.97, "val": 0.79, "test": 0.81}
"""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torchmetrics.functional.classification import (
    binary_auroc,
    multiclass_accuracy,
    multiclass_f1_score,
    multilabel_accuracy,
    multilabel_f1_score,
)

from laconic.errors import ConfigError, DivergedError
from laconic.graph import Shard
from laconic.trainer.forward import run_model

# Shapes: N nodes, R rows of one split, C classes or labels


@final
class Evaluation:
    """Scores a model on the three splits of one whole-graph shard.

    Args:
        metric: "auto", "accuracy", "micro_f1" or "roc_auc"; higher is better for each.
        shard: the whole graph.
    """

    def __init__(self, metric: str, shard: Shard) -> None:
        self.is_multilabel = shard.y.dim() == 2
        self.metric = ("micro_f1" if self.is_multilabel else "accuracy") if metric == "auto" else metric
        self._score = _SCORES[self.metric]
        self._shard = shard
        masks = {"train": shard.train_mask, "val": shard.val_mask, "test": shard.test_mask}
        self._rows = {split: mask.nonzero().squeeze(1) for split, mask in masks.items()}
        if self.metric == "roc_auc":
            self._check_both_kinds()

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Returns the score of each split, from 0 to 1."""
        logits_NC = whole_graph_logits(model, self._shard)
        if not bool(torch.isfinite(logits_NC).all()):
            raise DivergedError("The model's outputs became infinite or NaN.")
        scores = {}
        for split, rows in self._rows.items():
            score = float(self._score(logits_NC[rows], self._shard.y[rows]))
            # float32 holds no more than this; 0.815 reads better than 0.8149999976158142.
            scores[split] = round(score, 7)
        return scores

    def _check_both_kinds(self) -> None:
        for split, rows in self._rows.items():
            y = self._shard.y[rows]
            if y.dim() == 1 and len(torch.unique(y)) < 2:
                raise ConfigError(
                    f"roc_auc compares nodes of a class with the others, but the {split} nodes are all of class "
                    f"{int(y[0])}. Use training.metric=accuracy, or other splits."
                )


def whole_graph_logits(model: nn.Module, shard: Shard) -> Tensor:
    """Returns the model's outputs for every node, in eval mode and without gradients; the mode is put back after."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return run_model(model, shard)
    finally:
        model.train(was_training)


def predicted(logits_RC: Tensor, *, is_multilabel: bool) -> Tensor:
    """Returns the likeliest class of each row (R,), or which labels are likelier than not, as 0 and 1 (R, C)."""
    return (logits_RC > 0).long() if is_multilabel else logits_RC.argmax(dim=1)


def probabilities(logits_RC: Tensor, *, is_multilabel: bool) -> Tensor:
    """Returns the probability of each class or label, in float64 so that large logits do not all become 1."""
    wide = logits_RC.double()
    return wide.sigmoid() if is_multilabel else wide.softmax(dim=1)


def _accuracy(logits_RC: Tensor, y: Tensor) -> Tensor:
    is_multilabel = y.dim() == 2
    guess, num_classes = predicted(logits_RC, is_multilabel=is_multilabel), logits_RC.shape[1]
    if is_multilabel:
        return multilabel_accuracy(guess, y.long(), num_classes, average="micro", validate_args=False)
    return multiclass_accuracy(guess, y, num_classes, average="micro", validate_args=False)


def _micro_f1(logits_RC: Tensor, y: Tensor) -> Tensor:
    is_multilabel = y.dim() == 2
    guess, num_classes = predicted(logits_RC, is_multilabel=is_multilabel), logits_RC.shape[1]
    if is_multilabel:
        return multilabel_f1_score(guess, y.long(), num_classes, average="micro", validate_args=False)
    return multiclass_f1_score(guess, y, num_classes, average="micro", validate_args=False)


def _roc_auc(logits_RC: Tensor, y: Tensor) -> Tensor:
    """Mean over classes (each against the rest) or labels; those that all rows have, or none, say nothing."""
    is_multilabel, num_classes = y.dim() == 2, logits_RC.shape[1]
    chance_RC = probabilities(logits_RC, is_multilabel=is_multilabel)
    truth_RC = y.long() if is_multilabel else torch.nn.functional.one_hot(y, num_classes)
    positives = truth_RC.sum(dim=0)
    telling = ((positives > 0) & (positives < len(truth_RC))).nonzero().squeeze(1).tolist()
    if not telling:
        return torch.tensor(0.5)
    areas = [binary_auroc(chance_RC[:, c].contiguous(), truth_RC[:, c], validate_args=False) for c in telling]
    return torch.stack(areas).mean()


_SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": _accuracy,
    "micro_f1": _micro_f1,
    "roc_auc": _roc_auc,
}

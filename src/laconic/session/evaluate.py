"""Scores on the whole graph: one exact forward pass in eval mode, never over a sampled neighbourhood.

scores = Evaluation("accuracy", shard)(model, shard)       # {"train": 0.97, "val": 0.79, "test": 0.81}
"""

import statistics
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from laconic.attach.forward import run_model
from laconic.comm import Communicator, Ledger, LocalTransport
from laconic.comm.gather import gather_rows
from laconic.errors import ConfigError, DivergedError
from laconic.graph import Shard

# Shapes: N nodes, R rows of one split, C classes or labels, P positive rows


@final
class Evaluation:
    """Scores a model on the three splits of the whole graph.

    Args:
        metric: "auto", "accuracy", "micro_f1" or "roc_auc"; higher is better for each.
        shard: the whole graph, or one rank's share of it, whose owned rows are scored.
        communicator: where ranks share it: all of them call together, and get the same scores.
    """

    def __init__(self, metric: str, shard: Shard, communicator: Communicator | None = None) -> None:
        self._communicator = communicator or Communicator(LocalTransport(), Ledger(0))
        self.is_multilabel = shard.y.dim() == 2
        self.metric = ("micro_f1" if self.is_multilabel else "accuracy") if metric == "auto" else metric
        self._score = _SCORES[self.metric]
        # Not the shard: its features are held by the worker, with those of others where it computes their rows.
        self._y = shard.y
        masks = {"train": shard.train_mask, "val": shard.val_mask, "test": shard.test_mask}
        self._rows = {split: mask.nonzero().squeeze(1) for split, mask in masks.items()}
        if self.metric == "roc_auc":
            self._check_both_kinds()

    def __call__(self, model: nn.Module, shard: Shard) -> dict[str, float]:
        """Returns the score of each split, from 0 to 1.

        Args:
            shard: what the model is called on now, with the same owned rows.
        """
        logits_NC = whole_graph_logits(model, shard)
        scores = {}
        with self._communicator.ledger.phase("evaluation"):
            self._check_finite(logits_NC)
            for split, rows in self._rows.items():
                score = float(self._score(logits_NC[rows], self._y[rows], self._communicator))
                # float32 holds no more than this; 0.815 reads better than 0.8149999976158142.
                scores[split] = round(score, 7)
        return scores

    def _check_finite(self, logits_NC: Tensor) -> None:
        is_bad = torch.tensor([int(not bool(torch.isfinite(logits_NC).all()))])
        if int(self._communicator.all_reduce(is_bad, op="max")):
            raise DivergedError("The model's outputs became infinite or NaN.")

    def _check_both_kinds(self) -> None:
        for split, rows in self._rows.items():
            y = gather_rows(self._communicator, self._y[rows])
            if y.dim() == 1 and len(torch.unique(y)) < 2:
                raise ConfigError(
                    f"roc_auc compares nodes of a class with the others, but the {split} nodes are all of class "
                    f"{int(y[0])}. Use training.metric=accuracy, or other splits."
                )


def whole_graph_logits(model: nn.Module, shard: Shard) -> Tensor:
    """Returns the outputs for every owned node, in eval mode and without gradients; the mode is put back after."""
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


def _accuracy(logits_RC: Tensor, y: Tensor, communicator: Communicator) -> Tensor:
    true_positives, false_positives, true_negatives, false_negatives = _counts(logits_RC, y, communicator)
    if y.dim() == 1:
        # One guess per node: it is right, or a false positive of one class and a false negative of another.
        return torch.div(true_positives, true_positives + false_negatives)
    right = true_positives + true_negatives
    return torch.div(right, right + false_positives + false_negatives)


def _micro_f1(logits_RC: Tensor, y: Tensor, communicator: Communicator) -> Tensor:
    true_positives, false_positives, _, false_negatives = _counts(logits_RC, y, communicator)
    denominator = 2 * true_positives + false_positives + false_negatives
    return 2 * true_positives / denominator if denominator > 0 else torch.tensor(0.0)


def _counts(logits_RC: Tensor, y: Tensor, communicator: Communicator) -> Tensor:
    """Returns true and false positives, true and false negatives, summed over classes and ranks."""
    if y.dim() == 2:
        guess_RC, truth_RC = predicted(logits_RC, is_multilabel=True).bool(), y > 0
        is_of_kind = (guess_RC & truth_RC, guess_RC & ~truth_RC, ~guess_RC & ~truth_RC, ~guess_RC & truth_RC)
        counts = torch.stack([each.sum() for each in is_of_kind])
    else:
        num_right = (predicted(logits_RC, is_multilabel=False) == y).sum()
        num_wrong = len(y) - num_right
        # A wrong guess says one class too much and misses another; all other classes are rightly not said.
        counts = torch.stack([num_right, num_wrong, len(y) * (logits_RC.shape[1] - 1) - num_wrong, num_wrong])
    return communicator.all_reduce(counts).double()


def _roc_auc(logits_RC: Tensor, y: Tensor, communicator: Communicator) -> Tensor:
    """Mean over classes (each against the rest) or labels; those that all rows have, or none, say nothing."""
    # Ranks of numbers need all numbers: there is no way to add up parts.
    logits_RC, y = gather_rows(communicator, logits_RC), gather_rows(communicator, y)
    is_multilabel, num_classes = y.dim() == 2, logits_RC.shape[1]
    chance_RC = probabilities(logits_RC, is_multilabel=is_multilabel)
    truth_RC = y.long() if is_multilabel else torch.nn.functional.one_hot(y, num_classes)
    positives = truth_RC.sum(dim=0)
    telling = ((positives > 0) & (positives < len(truth_RC))).nonzero().squeeze(1).tolist()
    if not telling:
        return torch.tensor(0.5)
    areas = [_area(chance_RC[:, c].contiguous(), truth_RC[:, c].bool()) for c in telling]
    return torch.tensor(statistics.fmean(areas), dtype=torch.float64)


def _area(scores_R: Tensor, is_positive_R: Tensor) -> float:
    """Returns the area under the ROC curve: how many pairs of a positive and a negative row are in the right order.

    By Mann and Whitney: with the rows ranked from 1 and ties at the mean of their ranks, the ranks of P positive rows
    add up to P (P + 1) / 2 if all are below the N negative ones, and each pair in the right order adds 1.
    """
    sorted_R, positive_P = scores_R.sort().values, scores_R[is_positive_R]
    # The mean rank of ties lies halfway between how many rows are below and how many are not above.
    num_below_P = torch.searchsorted(sorted_R, positive_P)
    num_not_above_P = torch.searchsorted(sorted_R, positive_P, right=True)
    # Doubled, ranks are whole numbers: nothing is rounded before the division.
    twice_ranks = int((num_below_P + num_not_above_P + 1).sum())
    num_positive = len(positive_P)
    num_pairs = num_positive * (len(scores_R) - num_positive)
    return (twice_ranks - num_positive * (num_positive + 1)) / (2 * num_pairs)


_SCORES: dict[str, Callable[[Tensor, Tensor, Communicator], Tensor]] = {
    "accuracy": _accuracy,
    "micro_f1": _micro_f1,
    "roc_auc": _roc_auc,
}

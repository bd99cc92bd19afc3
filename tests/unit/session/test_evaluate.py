import dataclasses

import pytest
import torch
from torch import nn

from laconic.errors import ConfigError, DivergedError
from laconic.graph import Shard
from laconic.session.evaluate import Evaluation, predicted, probabilities, whole_graph_logits


class Fixed(nn.Module):
    """Gives the logits it was made with, and remembers in which mode it was asked."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        self.modes.append((self.training, torch.is_grad_enabled()))
        return self.logits


@pytest.fixture
def shard(small_graph):
    return Shard.whole(small_graph)


@pytest.fixture
def logits():
    return torch.randn(60, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def labelled(small_graph):
    y = (torch.rand(60, 4, generator=torch.Generator().manual_seed(1)) < 0.3).float()
    y[:, 3] = 0
    return Shard.whole(dataclasses.replace(small_graph, y=y))


def area_by_pairs(scores: torch.Tensor, is_positive: torch.Tensor) -> float:
    """The share of (positive, negative) pairs in the right order, ties counted half: the area under the curve."""
    difference = scores[is_positive][:, None] - scores[~is_positive][None, :]
    return float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())


def test_accuracy_is_the_share_of_right_classes_in_each_split(shard, logits):
    scores = Evaluation("auto", shard)(Fixed(logits), shard)
    right = logits.argmax(dim=1) == shard.y
    for split, mask in (("train", shard.train_mask), ("val", shard.val_mask), ("test", shard.test_mask)):
        assert scores[split] == pytest.approx(float(right[mask].double().mean()), abs=1e-6)


def test_micro_f1_of_one_class_per_node_is_its_accuracy(shard, logits):
    assert Evaluation("micro_f1", shard)(Fixed(logits), shard) == Evaluation("accuracy", shard)(Fixed(logits), shard)


def test_micro_f1_of_labels_counts_them_all_together(labelled, logits):
    evaluation = Evaluation("auto", labelled)
    assert evaluation.metric == "micro_f1"
    guess, truth = logits[labelled.test_mask] > 0, labelled.y[labelled.test_mask] > 0
    hits, misses = int((guess & truth).sum()), int((guess ^ truth).sum())
    assert evaluation(Fixed(logits), labelled)["test"] == pytest.approx(2 * hits / (2 * hits + misses), abs=1e-6)


def test_accuracy_of_labels_is_the_share_of_right_ones(labelled, logits):
    right = (logits > 0) == (labelled.y > 0)
    scores = Evaluation("accuracy", labelled)(Fixed(logits), labelled)
    assert scores["val"] == pytest.approx(float(right[labelled.val_mask].double().mean()), abs=1e-6)


def test_roc_auc_of_labels_is_the_mean_over_those_that_some_have_and_some_not(labelled, logits):
    rows = labelled.train_mask
    areas = [area_by_pairs(logits[rows, c], labelled.y[rows, c] > 0) for c in range(3)]
    assert Evaluation("roc_auc", labelled)(Fixed(logits), labelled)["train"] == pytest.approx(sum(areas) / 3, abs=1e-6)


def test_roc_auc_of_classes_compares_each_with_the_rest(shard, logits):
    rows, chance = shard.train_mask, logits.double().softmax(dim=1)
    areas = [area_by_pairs(chance[rows, c], shard.y[rows] == c) for c in range(4)]
    assert Evaluation("roc_auc", shard)(Fixed(logits), shard)["train"] == pytest.approx(sum(areas) / 4, abs=1e-6)


def test_roc_auc_of_two_classes_is_the_area_for_the_second(small_graph, logits):
    shard = Shard.whole(dataclasses.replace(small_graph, y=small_graph.y % 2, num_classes=2))
    rows = shard.test_mask
    area = area_by_pairs(logits[rows, 1] - logits[rows, 0], shard.y[rows] == 1)
    assert Evaluation("roc_auc", shard)(Fixed(logits[:, :2]), shard)["test"] == pytest.approx(area, abs=1e-6)


def test_roc_auc_tells_confident_outputs_apart(small_graph):
    shard = Shard.whole(dataclasses.replace(small_graph, y=small_graph.y % 2, num_classes=2))
    confident = torch.stack([torch.zeros(60), 20.0 + shard.y], dim=1)
    assert Evaluation("roc_auc", shard)(Fixed(confident), shard)["test"] == 1.0


def test_roc_auc_counts_a_tie_as_half_a_pair_in_order(labelled, logits):
    coarse = logits.round()
    assert len(coarse.unique()) < 10, "there are ties"
    rows = labelled.test_mask
    areas = [area_by_pairs(coarse[rows, c], labelled.y[rows, c] > 0) for c in range(3)]
    scores = Evaluation("roc_auc", labelled)(Fixed(coarse), labelled)
    assert scores["test"] == round(sum(areas) / 3, 7)
    assert set(Evaluation("roc_auc", labelled)(Fixed(torch.zeros(60, 4)), labelled).values()) == {0.5}


def test_roc_auc_of_a_split_with_one_class_is_refused(small_graph):
    y = small_graph.y.clone()
    y[small_graph.val_mask] = 2
    with pytest.raises(ConfigError, match="val nodes are all of class 2"):
        Evaluation("roc_auc", Shard.whole(dataclasses.replace(small_graph, y=y)))


@pytest.mark.parametrize("was_training", [True, False])
def test_the_model_is_asked_in_eval_mode_without_gradients_and_put_back(shard, logits, was_training):
    model = Fixed(logits).train(was_training)
    Evaluation("accuracy", shard)(model, shard)
    assert model.modes == [(False, False)]
    assert model.training == was_training


def test_the_mode_is_put_back_after_an_error_too(shard):
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    model = Fails().train()
    with pytest.raises(ZeroDivisionError):
        whole_graph_logits(model, shard)
    assert model.training


def test_outputs_that_are_not_finite_are_no_score(shard, logits):
    logits[59, 3] = torch.nan
    with pytest.raises(DivergedError, match="NaN"):
        Evaluation("accuracy", shard)(Fixed(logits), shard)


def test_predictions_are_the_likeliest_class_or_the_likely_labels(logits):
    assert torch.equal(predicted(logits, is_multilabel=False), probabilities(logits, is_multilabel=False).argmax(dim=1))
    assert torch.equal(predicted(logits, is_multilabel=True), (probabilities(logits, is_multilabel=True) > 0.5).long())

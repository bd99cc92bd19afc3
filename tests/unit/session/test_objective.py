"""A loss in parts is torch's own of the whole: values and gradients, for whatever torch takes (out, y) and reduces."""

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from laconic.errors import ConfigError
from laconic.session.objective import loss_part, usual_loss

C = 4
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(10, C, dtype=torch.float64, generator=GENERATOR)
CLASSES = torch.randint(0, C, (10,), generator=GENERATOR)
LABELS = (torch.randn(10, C, generator=GENERATOR) > 0).float()
W = torch.tensor([0.5, 2.0, 0.0, 7.0], dtype=torch.float64)


def parts_of(function, out, y, cuts=(0, 1, 4, 4, 10), factors=None):
    """The loss of parts, one of them empty, put together as ranks do it."""
    slices = [slice(*ends) for ends in itertools.pairwise(cuts)]
    parts = [loss_part(function, out[at], y[at], None if factors is None else factors[at]) for at in slices]
    total = torch.stack([part.total for part in parts]).sum()
    weights = [part.weight for part in parts]
    return total if None in weights else total / sum(weights)


def assert_same(function, out, y, expected):
    losses = []
    for compute in (lambda mine: parts_of(function, mine, y), expected):
        mine = out.clone().requires_grad_()
        loss = compute(mine)
        (gradient,) = torch.autograd.grad(loss, mine)
        losses.append((loss.detach(), gradient))
    for ours, torchs in zip(*losses, strict=True):
        torch.testing.assert_close(ours, torchs, rtol=0, atol=1e-12)


OF_CLASSES = {
    "cross_entropy": F.cross_entropy,
    "weight": partial(F.cross_entropy, weight=W),
    "smoothing": partial(F.cross_entropy, label_smoothing=0.2),
    "weight and smoothing": partial(F.cross_entropy, weight=W, label_smoothing=0.2),
    "ignore_index": partial(F.cross_entropy, ignore_index=1),
    "everything": partial(F.cross_entropy, weight=W, label_smoothing=0.2, ignore_index=1),
    "sum": partial(F.cross_entropy, weight=W, reduction="sum"),
    "nll_loss": F.nll_loss,
    "nll_loss with weight": partial(F.nll_loss, weight=W, ignore_index=0),
    "multi_margin": F.multi_margin_loss,
    "multi_margin with weight": partial(F.multi_margin_loss, weight=W, p=2),
    "module": nn.CrossEntropyLoss(),
    "module with everything": nn.CrossEntropyLoss(weight=W, label_smoothing=0.1, ignore_index=3),
    "module, sum": nn.CrossEntropyLoss(weight=W, reduction="sum"),
    "NLLLoss": nn.NLLLoss(weight=W),
    "MultiMarginLoss": nn.MultiMarginLoss(),
    "any keywords": lambda out, y, **settings: F.cross_entropy(out, y, weight=W, **settings),
}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_of_classes_parts_add_up_to_torchs_loss(name):
    assert_same(OF_CLASSES[name], LOGITS, CLASSES, lambda out: OF_CLASSES[name](out, CLASSES))


OF_LABELS = {
    "bce with logits": F.binary_cross_entropy_with_logits,
    "pos_weight": partial(F.binary_cross_entropy_with_logits, pos_weight=W + 1),
    "weight": partial(F.binary_cross_entropy_with_logits, weight=W),
    "sum": partial(F.binary_cross_entropy_with_logits, reduction="sum"),
    "module": nn.BCEWithLogitsLoss(pos_weight=W + 1),
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth_l1": partial(F.smooth_l1_loss, beta=0.3),
    "huber": partial(F.huber_loss, delta=0.3),
    "kl_div": F.kl_div,
    "kl_div, batchmean": partial(F.kl_div, reduction="batchmean"),
    "KLDivLoss": nn.KLDivLoss(reduction="batchmean"),
    "soft_margin": F.soft_margin_loss,
    "multilabel_soft_margin": F.multilabel_soft_margin_loss,
    "multilabel_soft_margin with weight": nn.MultiLabelSoftMarginLoss(weight=W),
    "poisson": F.poisson_nll_loss,
    "gaussian": lambda out, y, reduction="mean": F.gaussian_nll_loss(out, y, 0.7, reduction=reduction),
    "hinge": F.hinge_embedding_loss,
    "class probabilities": F.cross_entropy,
    "class probabilities with weight": nn.CrossEntropyLoss(weight=W, label_smoothing=0.1),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("name", OF_LABELS)
def test_of_labels_parts_add_up_to_torchs_loss(name):
    # Labels are float32, the model is not: torch is given what it would be given in float64.
    assert_same(OF_LABELS[name], LOGITS, LABELS, lambda out: OF_LABELS[name](out, LABELS.double()))


@pytest.mark.parametrize("function", [F.binary_cross_entropy, nn.BCELoss(), nn.BCELoss(weight=W)])
def test_of_probabilities_parts_add_up_to_torchs_loss(function):
    assert_same(function, LOGITS.sigmoid(), LABELS, lambda out: function(out, LABELS.double()))


@pytest.mark.parametrize("function", [F.mse_loss, F.binary_cross_entropy_with_logits, nn.L1Loss()])
def test_one_output_per_node_goes_with_class_numbers(function):
    assert_same(function, LOGITS[:, 0], CLASSES % 2, lambda out: function(out, (CLASSES % 2).double()))


def test_losses_of_ones_own_are_a_mean_over_nodes():
    def focal(out, y):
        log_p = F.log_softmax(out, 1).gather(1, y[:, None])[:, 0]
        return -((1 - log_p.exp()) ** 2) * log_p

    assert_same(focal, LOGITS, CLASSES, lambda out: focal(out, CLASSES).mean())
    for function in (partial(F.cross_entropy, weight=W, reduction="none"), nn.MSELoss(reduction="none")):
        y = CLASSES if isinstance(function, partial) else LABELS
        expected = y if isinstance(function, partial) else y.double()
        assert_same(function, LOGITS, y, lambda out, f=function, e=expected: f(out, e).mean())


def test_a_rank_whose_losses_are_all_zero_still_counts():
    sure = torch.where(F.one_hot(CLASSES, C).bool(), 800.0, -800.0).double()
    part = loss_part(partial(F.cross_entropy, weight=W), sure, CLASSES)
    assert part.total == 0.0
    assert part.weight == pytest.approx(float(W[CLASSES].sum()), rel=1e-12)


def test_labels_that_are_all_ignored_weigh_nothing():
    y = torch.full_like(CLASSES, -100)
    for function in (F.cross_entropy, nn.CrossEntropyLoss(), partial(F.cross_entropy, weight=W)):
        part = loss_part(function, LOGITS, y)
        assert (float(part.total), part.weight) == (0.0, 0.0)


def test_a_factor_of_each_row_multiplies_its_loss_and_leaves_the_weights():
    factors = torch.linspace(0.5, 1.5, 10, dtype=torch.float64)
    losses = F.cross_entropy(LOGITS, CLASSES, weight=W, reduction="none")
    found = parts_of(nn.CrossEntropyLoss(weight=W), LOGITS, CLASSES, factors=factors)
    torch.testing.assert_close(found, (factors * losses).sum() / W[CLASSES].sum(), rtol=0, atol=1e-12)
    labels = F.binary_cross_entropy_with_logits(LOGITS, LABELS.double(), reduction="none")
    found = parts_of(F.binary_cross_entropy_with_logits, LOGITS, LABELS, factors=factors)
    torch.testing.assert_close(found, (factors * labels.mean(1)).mean(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outputs_of_16_bits_are_summed_in_32(dtype):
    out, y = torch.zeros(70_000, 4, dtype=dtype), torch.zeros(70_000, dtype=torch.int64)
    for function in (
        F.cross_entropy,
        nn.CrossEntropyLoss(weight=torch.ones(4, dtype=dtype)),
        partial(F.cross_entropy, weight=torch.ones(4, dtype=dtype)),
    ):
        part = loss_part(function, out, y)
        assert float(part.total) / part.weight == pytest.approx(1.3862944, rel=1e-4)


def test_a_loss_of_ones_own_on_outputs_of_16_bits_keeps_its_weight():
    def doubled(out, y, reduction="mean"):
        losses = 2 * F.cross_entropy(out, y, reduction="none")
        return losses.mean() if reduction == "mean" else losses.sum()

    generator = torch.Generator().manual_seed(0)
    out = torch.randn(183, 4, generator=generator).bfloat16()
    part = loss_part(doubled, out, torch.zeros(183, dtype=torch.int64))
    assert part.weight == pytest.approx(183, rel=1e-5)


def test_the_module_of_the_user_stays_as_it_is():
    module = nn.CrossEntropyLoss(weight=W)
    loss_part(module, LOGITS, CLASSES)
    assert module.reduction == "mean"
    assert module.weight is W


@pytest.mark.parametrize(
    ("function", "out", "y", "words"),
    [
        (lambda out, y: F.cross_entropy(out, y), LOGITS, CLASSES, "one number for all nodes together.*functools.par"),
        (lambda out, y: F.cross_entropy(out, y), LOGITS[:0], CLASSES[:0], "one number for all nodes together"),
        (lambda out, y: (out, y), LOGITS, CLASSES, "one number for each of 10 nodes, but gave a tuple"),
        (lambda out, y: out[:3], LOGITS, CLASSES, r"one number for each of 10 nodes, but gave .*\(3, 4\)"),
        (lambda out, y, reduction: out, LOGITS, CLASSES, r"one number with reduction='sum', but gave .*\(10, 4\)"),
        (
            lambda out, y, **settings: F.cross_entropy(out, y),
            LOGITS,
            CLASSES,
            "one number for all nodes",
        ),
        (F.cross_entropy(LOGITS, CLASSES), LOGITS, CLASSES, "should be a loss function .* got a Tensor"),
        (partial(F.cross_entropy, size_average=False), LOGITS, CLASSES, "size_average and reduce are torch's old"),
        (partial(F.cross_entropy, reduction="median"), LOGITS, CLASSES, "reduction='median', which ranks cannot"),
        (F.cross_entropy, LOGITS[:, :2], CLASSES, r"outputs \(10, 2\) float64 and labels \(10,\) int64: Target"),
        (F.cross_entropy, LOGITS[:, 0], CLASSES, r"\(nodes, classes\); got \(10,\) float64.*binary_cross"),
        (F.mse_loss, LOGITS[:, :1], CLASSES, r"Give out.squeeze\(1\)"),
        (F.binary_cross_entropy_with_logits, LOGITS, CLASSES, "For class numbers use F.cross_entropy"),
        (F.binary_cross_entropy_with_logits, LOGITS[:, :2], LABELS, "model should have 4 outputs per node"),
        (nn.CrossEntropyLoss(weight=W.clone().requires_grad_()), LOGITS, CLASSES, "needs gradients"),
        (partial(F.cross_entropy, weight=W.clone().requires_grad_()), LOGITS, CLASSES, "needs gradients"),
        (nn.CrossEntropyLoss(weight=W[:2]), LOGITS, CLASSES, "CrossEntropyLoss cannot be taken of outputs"),
    ],
)
def test_what_cannot_be_put_together_is_refused_with_what_to_write(function, out, y, words):
    with pytest.raises(ConfigError, match=words):
        loss_part(function, out, y)


def test_a_mean_that_divides_by_something_of_the_outputs_is_refused():
    def by_confidence(out, y, reduction="mean"):
        losses, sure = F.cross_entropy(out, y, reduction="none"), out.softmax(1).max(1).values
        return (losses * sure).sum() / (sure.sum() if reduction == "mean" else 1)

    with pytest.raises(ConfigError, match="divides its sum by something that depends on the outputs"):
        loss_part(by_confidence, 5 * LOGITS, CLASSES)


def test_the_usual_loss_goes_by_the_labels():
    assert usual_loss(CLASSES) is F.cross_entropy
    assert usual_loss(LABELS) is F.binary_cross_entropy_with_logits

import torch
import torch.nn.functional as F

from laconic.trainer.objective import objective


def test_on_all_rows_it_is_torchs_mean_cross_entropy():
    logits, y = torch.randn(10, 4, dtype=torch.float64), torch.arange(10) % 4
    torch.testing.assert_close(objective(logits, y, 10), F.cross_entropy(logits, y))


def test_on_all_rows_of_labels_it_is_torchs_mean_binary_cross_entropy():
    logits, y = torch.randn(10, 4, dtype=torch.float64), (torch.randn(10, 4) > 0).float()
    torch.testing.assert_close(objective(logits, y, 10), F.binary_cross_entropy_with_logits(logits, y.double()))


def test_losses_and_gradients_of_unequal_parts_add_up_to_those_of_the_whole():
    for y in (torch.arange(10) % 4, (torch.randn(10, 4) > 0).float()):
        logits = torch.randn(10, 4, dtype=torch.float64, requires_grad=True)
        whole = objective(logits, y, 10)
        parts = objective(logits[:1], y[:1], 10) + objective(logits[1:], y[1:], 10)
        torch.testing.assert_close(parts, whole)
        one, other = (torch.autograd.grad(loss, logits)[0] for loss in (whole, parts))
        torch.testing.assert_close(one, other)


def test_a_part_without_training_rows_adds_nothing():
    assert objective(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), 10) == 0

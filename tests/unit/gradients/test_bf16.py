import torch

from laconic.gradients.reductions import Bf16
from laconic.gradients.reductions import _buckets as buckets


def values(rank: int, num_words: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    magnitudes = 10.0 ** torch.randint(-20, 3, (num_words,), generator=generator)
    return torch.randn(num_words, generator=generator) * magnitudes


def test_the_mean_is_off_by_no_more_than_two_roundings(on_ranks):
    num_words = 1001
    means = on_ranks(
        3, lambda communicator: Bf16().reducer(communicator).means({"w": values(communicator.rank, num_words)})
    )
    every = torch.stack([values(rank, num_words) for rank in range(3)]).double()
    mean, magnitude = every.mean(0), every.abs().mean(0)
    error = (means[0]["w"].double() - mean).abs()
    # A word is rounded once before the sum and once after it, each time by half a unit of 8 bits.
    assert bool((error <= 2**-8 * mean.abs() + 1.01 * 2**-8 * magnitude).all())
    assert bool((error > 2**-12 * magnitude).any()), "nothing was rounded"


def test_numbers_that_are_not_finite_stay_so(on_ranks):
    given = torch.tensor([float("nan"), float("inf"), 1.0])
    for means in on_ranks(2, lambda communicator: Bf16().reducer(communicator).means({"w": given})):
        assert means["w"].isnan().tolist() == [True, False, False]
        assert means["w"].isinf().tolist() == [False, True, False]


def test_every_word_costs_two_bytes_there_and_two_back(on_ranks):
    num_ranks, num_words = 3, 10

    def run(communicator):
        with communicator.ledger.phase("gradients"):
            Bf16().reducer(communicator).means({"a": torch.ones(4), "b": torch.ones(num_words - 4)})
        return communicator.ledger.take(1)

    for rows in on_ranks(num_ranks, run):
        # Ten words in three parts are parts of four.
        assert [(row.phase, row.operation, row.direction, row.num_messages, row.num_bytes) for row in rows] == [
            ("gradients", operation, direction, 2, 2 * 2 * 4)
            for operation in ("all_gather", "reduce_scatter")
            for direction in ("received", "sent")
        ]


def test_buckets_hold_one_dtype_and_are_filled_in_order(monkeypatch):
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 40)
    tensors = [torch.ones(size) for size in (4, 6, 1)] + [torch.ones(30), torch.ones(2).double(), torch.ones(1)]
    assert list(buckets.buckets(tensors)) == [[0, 1], [2], [3], [5], [4]]


def test_many_buckets_give_what_one_gives(monkeypatch, on_ranks):
    def run(communicator):
        given = {str(size): torch.arange(float(size)) + communicator.rank for size in (4, 6, 1, 30)}
        return Bf16().reducer(communicator).means(given)

    whole = on_ranks(2, run)[0]
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 40)
    for means in on_ranks(2, run):
        assert all(torch.equal(means[name], whole[name]) for name in whole)

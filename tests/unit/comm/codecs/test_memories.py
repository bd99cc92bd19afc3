"""Codecs that remember: what arrives over many messages, and that both ends remember the same."""

import itertools

import numpy as np
import pytest
import torch

from laconic.comm.codecs import Memory, MessageKey, parse_codec
from laconic.errors import ConfigError

ROWS = torch.randn(9, 13, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Line:
    """A sender and a receiver."""

    def __init__(self, text: str, rate: float) -> None:
        self.codec, self.rate = parse_codec(text), rate
        self.sender, self.receiver = Memory(), Memory()
        self.epoch = 0

    def send(self, rows: torch.Tensor) -> torch.Tensor:
        self.epoch += 1
        key = MessageKey(0, self.epoch, 0, 1, 0, "forward", 0, 1, np.arange(len(rows)))
        packet = self.codec.encode(rows, key, self.rate, self.sender)
        decode = self.codec.decode
        return decode(packet, key, self.rate, width=rows.shape[1], dtype=rows.dtype, memory=self.receiver)


@pytest.mark.parametrize(("text", "rate", "age"), [("cache", 4.0, 5), ("cache", 13.0, 13), ("cache(age=2)", 9.0, 2)])
def test_a_cache_of_rows_that_stand_still_is_exact_when_every_column_had_its_turn(text, rate, age):
    line = Line(text, rate)
    outs = [line.send(ROWS) for _ in range(age)]
    assert torch.equal(outs[-1], ROWS)
    assert not torch.equal(outs[-2], ROWS)


def test_no_column_of_a_cache_is_older_than_promised():
    line = Line("cache", 4.0)
    for moment in range(1, 30):
        out = line.send(torch.full((3, 13), float(moment)))
        if moment >= 5:
            assert int(out.min()) > moment - 5


def test_a_cache_goes_on_where_it_was_when_the_rate_changes():
    line = Line("cache", 13.0)
    line.send(ROWS)
    line.rate = 2.0
    for _ in range(2):
        out = line.send(ROWS)
    assert torch.equal(out, ROWS)


@pytest.mark.parametrize(
    ("inner", "rate", "shrink"),
    [
        ("quantize(bits=4, stochastic=False)", 8.0, 0.1),
        ("quantize(bits=2, stochastic=False)", 16.0, 0.45),
        ("quantize(bits=4)", 8.0, 0.2),
        ("topk", 4.0, 0.9),
        ("low_rank", 4.0, 0.9),
        ("cast", 2.0, 0.01),
    ],
)
def test_error_feedback_brings_rows_that_stand_still_exactly(inner, rate, shrink):
    line = Line(f"error_feedback(codec={inner!r})", rate)
    errors = [float((line.send(ROWS) - ROWS).square().sum()) for _ in range(12)]
    for before, after in itertools.pairwise(errors):
        assert after <= max(shrink * before, 1e-24)


def test_error_feedback_of_a_subset_loses_what_is_left_out_in_the_mean():
    errors = []
    for seed in range(200):
        line = Line("error_feedback(codec=subset(by='row'))", 13 / 4)
        line.epoch = 1000 * seed
        errors.append([float((line.send(ROWS) - ROWS).square().sum()) for _ in range(4)])
    means = np.mean(errors, axis=0) / float(ROWS.square().sum())
    # A subset of 4 of 13 columns leaves 9 in 13 of the error, each time.
    np.testing.assert_allclose(means, (9 / 13) ** np.arange(1, 5), rtol=0.03)


def test_error_feedback_refuses_a_rate_at_which_its_errors_would_grow():
    with pytest.raises(ConfigError, match=r"errors would grow, or stay.*rate 32"):
        Line("error_feedback(codec=quantize)", 32.0).send(ROWS)


@pytest.mark.parametrize("text", ["stale", "stale(codec='quantize(bits=8)')", "stale(codec=error_feedback)"])
def test_a_stale_codec_is_the_one_inside_and_says_that_its_rows_are_late(text):
    line, inner = Line(text, 4.0), Line(parse_codec(text).codec, 4.0)
    assert line.codec.is_late
    assert not inner.codec.is_late
    for moment in range(1, 6):
        assert torch.equal(line.send(ROWS * moment), inner.send(ROWS * moment))


@pytest.mark.parametrize("text", ["error_feedback", "cache", "stale(codec=error_feedback)"])
def test_rows_that_went_as_they_are_become_the_memory(text):
    line = Line(text, 4.0)
    line.send(ROWS)
    for memory in (line.sender, line.receiver):
        line.codec.note_exact(2 * ROWS, memory)
    torch.testing.assert_close(line.send(2 * ROWS), 2 * ROWS, rtol=0, atol=1e-12)


@pytest.mark.parametrize("text", ["error_feedback", "cache", "stale(codec=error_feedback)"])
def test_a_memory_goes_on_from_its_tensors(text):
    line, other = Line(text, 4.0), Line(text, 4.0)
    line.send(ROWS)
    other.epoch = 1
    other.sender, other.receiver = Memory(dict(line.sender.tensors)), Memory(dict(line.receiver.tensors))
    for moment in range(3):
        assert torch.equal(line.send(ROWS * moment), other.send(ROWS * moment))

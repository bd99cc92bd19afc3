"""What every codec promises. A new member is tested here by being in CODECS; its error stands in ERRORS."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.comm.codecs import CODECS, Codec, Memory, MessageKey, parse_codec
from laconic.errors import ConfigError, DivergedError
from laconic.specs import format_spec

# Every member, with settings that take other paths. The rate is theirs where they follow one.
SPECS = [
    *CODECS,
    "cast(to='float16')",
    "subset(by='row')",
    "subset(scale=True)",
    "subset(by='row', scale=True)",
    *(f"quantize(bits={bits})" for bits in (1, 2, 4, 8)),
    *(f"quantize(bits={bits}, stochastic=False)" for bits in (1, 2, 4, 8)),
    "error_feedback(codec='topk')",
    "error_feedback(codec='subset')",
    "cache(age=3)",
    "cache(codec='quantize(bits=4)', age=2)",
    "stale(codec='error_feedback(codec=quantize(bits=2))')",
    "stale(codec='relu_bitmap')",
]
SHAPES = [(40, 64), (40, 13), (7, 1), (1, 33), (3, 5), (0, 16), (5, 0)]
RATES = [1.0, 2.0, 3.7, 8.0, 64.0, 1e6]
DTYPES = [torch.float32, torch.float64]


def make_key(num_rows: int, *, epoch: int = 1, layer: int = 1, **where) -> MessageKey:
    ids = np.random.default_rng(7).permutation(1000)[:num_rows].astype(np.int64)
    values = {"seed": 3, "step": 0, "call": 0, "direction": "forward", "sender": 0, "receiver": 2, **where}
    return MessageKey(epoch=epoch, layer=layer, node_ids=ids, **values)


def make_rows(num_rows: int, width: int, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Tensor:
    """Like a hidden layer: half of the numbers are 0, and columns are of different size."""
    rng = np.random.default_rng(seed)
    rows = np.maximum(rng.normal(size=(num_rows, width)), 0) * np.linspace(0.2, 2.0, width)
    return torch.from_numpy(rows).to(dtype)


def send(codec: Codec, rows: Tensor, key: MessageKey, rate: float, ends: tuple[Memory, Memory] | None = None) -> Tensor:
    sender, receiver = ends or (Memory(), Memory())
    packet = codec.encode(rows, key, rate, sender)
    return codec.decode(packet, key, rate, width=rows.shape[1], dtype=rows.dtype, memory=receiver)


def usable(codec: Codec, rate: float) -> bool:
    """Whether the codec serves this rate: error_feedback refuses those at which errors would grow."""
    if type(codec).__name__ == "Stale":
        codec = codec.inner
    return type(codec).__name__ != "ErrorFeedback" or codec.inner.contracts(rate)


@pytest.mark.parametrize("name", CODECS)
def test_the_name_of_a_codec_is_its_file_and_its_shortest_spec(name):
    assert format_spec(parse_codec(name), CODECS) == name
    assert CODECS[name].__module__ == f"laconic.comm.codecs.{name}"


@pytest.mark.parametrize("text", SPECS)
def test_a_spec_comes_back_from_its_codec(text):
    codec = parse_codec(text)
    assert parse_codec(format_spec(codec, CODECS)) == codec


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("text", SPECS)
def test_a_packet_has_the_promised_size_and_rows_come_back_in_shape(text, shape, dtype):
    codec, rows = parse_codec(text), make_rows(*shape, dtype)
    for rate in RATES:
        if not usable(codec, rate):
            continue
        key, memory = make_key(shape[0]), Memory()
        packet = codec.encode(rows, key, rate, memory)
        assert packet.dtype == torch.uint8
        promised = codec.wire_bytes(*shape, rate, dtype.itemsize)
        if not rows.numel():
            assert promised == 0 or not codec.is_fixed_size or codec.wire_bytes(0, 16, rate) == 0
            assert len(packet) == 0
        elif codec.is_fixed_size:
            assert len(packet) == promised, rate
        else:
            assert len(packet) <= promised, rate
        out = codec.decode(packet, key, rate, width=shape[1], dtype=dtype, memory=Memory())
        assert out.shape == rows.shape
        assert out.dtype == dtype
        assert torch.isfinite(out).all()


FOLLOWING = ["subset", "subset(by='row')", "prefix", "topk", "quantize", "boundary_sample", "low_rank", "cache"]


@pytest.mark.parametrize("rate", [2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize("text", FOLLOWING)
def test_a_codec_that_follows_the_rate_meets_it_where_rows_are_wide(text, rate):
    share = parse_codec(text).wire_bytes(1000, 512, rate) / (1000 * 512 * 4)
    # quantize has the ends of each row to send beside.
    assert share == pytest.approx(1 / rate, rel=0.04 if text == "quantize" else 0.03)


@pytest.mark.parametrize("text", SPECS)
def test_the_same_key_gives_the_same_bytes_and_the_global_generators_stay_as_they_were(text):
    codec, rows, key = parse_codec(text), make_rows(30, 20), make_key(30)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first, second = (codec.encode(rows, key, 4.0, Memory()) for _ in range(2))
    outs = [codec.decode(first, key, 4.0, width=20, dtype=torch.float32, memory=Memory()) for _ in range(2)]
    assert torch.equal(first, second)
    assert torch.equal(*outs)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


@pytest.mark.parametrize("text", SPECS)
def test_the_number_of_threads_changes_nothing(text):
    codec, rows, key = parse_codec(text), make_rows(2000, 64), make_key(0)
    key = MessageKey(**{**vars(key), "node_ids": np.arange(2000)})
    before = torch.get_num_threads()
    try:
        packets = []
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            packets.append(codec.encode(rows, key, 4.0, Memory()))
    finally:
        torch.set_num_threads(before)
    if "low_rank" not in text:  # its sums are torch's
        assert torch.equal(*packets)


CHANCE = [text for text in SPECS if parse_codec(text).is_unbiased and text not in ("identity", "relu_bitmap")]
KEYED = [*CHANCE, "subset", "subset(by='row')"]


@pytest.mark.parametrize("text", KEYED)
@pytest.mark.parametrize("other", ["seed", "epoch", "step", "layer", "call", "sender", "receiver", "direction"])
def test_another_place_in_the_run_draws_otherwise(text, other):
    codec, rows = parse_codec(text), make_rows(40, 64)
    where = {other: "backward" if other == "direction" else 11}
    one, two = (send(codec, rows, key, 4.0) for key in (make_key(40), make_key(40, **where)))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("text", [text for text in KEYED if "boundary" not in text])
def test_what_is_drawn_for_a_node_does_not_depend_on_its_place_in_the_message(text):
    codec, rows, key = parse_codec(text), make_rows(40, 64), make_key(40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    moved = MessageKey(**{**vars(key), "node_ids": key.node_ids[order.numpy()]})
    assert torch.equal(send(codec, rows, key, 4.0)[order], send(codec, rows[order], moved, 4.0))


NUM_DRAWS = 2000


def draws(codec: Codec, rows: Tensor, rate: float) -> Tensor:
    keys = [make_key(len(rows), epoch=epoch) for epoch in range(NUM_DRAWS)]
    return torch.stack([send(codec, rows, key, rate).double() for key in keys])


@pytest.mark.parametrize("text", CHANCE)
def test_the_mean_over_keys_is_the_rows(text):
    codec, rows = parse_codec(text), make_rows(6, 13)
    decoded = draws(codec, rows, 4.0)
    deviation = decoded.std(dim=0)
    z = (decoded.mean(dim=0) - rows).abs() / (deviation / math.sqrt(NUM_DRAWS)).clamp(min=1e-9)
    # Numbers that never vary are exact, up to rounding; the largest of 78 z-values stays below 4.2 once in 2000 seeds.
    fixed = deviation < 1e-7
    torch.testing.assert_close(decoded.mean(dim=0)[fixed], rows.double()[fixed], rtol=0, atol=1e-6)
    assert z[~fixed].max().item() < 4.2


def tail(rows: Tensor, num_kept: int) -> float:
    return float(rows.double()[:, num_kept:].square().sum())


def of_quantize(bits: int, stochastic: bool) -> Callable[[Tensor], float]:
    def error(rows: Tensor) -> float:
        # With the ends as they travel, rounded outwards to bfloat16.
        low, high = (side.double() for side in rows.aminmax(dim=1))
        low, high = round_outwards(low, -1), round_outwards(high, +1)
        step = ((high - low) / (2**bits - 1))[:, None]
        part = ((rows.double() - low[:, None]) / step) % 1
        squares = part * (1 - part) if stochastic else torch.minimum(part, 1 - part) ** 2
        return float((squares * step**2).sum())

    return error


def round_outwards(values: Tensor, sign: int) -> Tensor:
    nearest = values.to(torch.bfloat16)
    beyond = torch.nextafter(nearest, torch.full_like(nearest, sign * math.inf))
    return torch.where((nearest.double() - values) * sign >= 0, nearest, beyond).double()


def of_low_rank(rows: Tensor) -> float:
    rank = int(rows.numel() / (4 * sum(rows.shape)))
    return float(torch.linalg.svdvals(rows.double())[max(rank, 1) :].square().sum())


def of_topk(rows: Tensor) -> float:
    # 24 columns: a quarter is 24 bytes; 3 bytes say where, so 5 numbers fit.
    return tail(rows.abs().sort(dim=1, descending=True).values, 5)


# At rate 4, for 60 rows of 24 columns: the mean over keys of the squared error, in closed form.
ERRORS: dict[str, Callable[[Tensor], float]] = {
    "identity": lambda rows: 0.0,
    "relu_bitmap": lambda rows: 0.0,
    "subset": lambda rows: 0.75 * tail(rows, 0),
    "subset(by='row')": lambda rows: 0.75 * tail(rows, 0),
    "subset(scale=True)": lambda rows: 3 * tail(rows, 0),
    "subset(by='row', scale=True)": lambda rows: 3 * tail(rows, 0),
    "prefix": lambda rows: tail(rows, 6),
    "topk": of_topk,
    "boundary_sample": lambda rows: 3 * tail(rows, 0),
    "low_rank": of_low_rank,
    "cache": lambda rows: tail(rows, 6),
    "stale": lambda rows: 0.0,
    "quantize": of_quantize(8, True),
    "error_feedback": of_quantize(2, False),
    "error_feedback(codec='topk')": of_topk,
    **{f"quantize(bits={b})": of_quantize(b, True) for b in (1, 2, 4, 8)},
    **{f"quantize(bits={b}, stochastic=False)": of_quantize(b, False) for b in (1, 2, 4, 8)},
}


def test_every_codec_has_its_error_in_closed_form():
    assert set(CODECS) - set(ERRORS) == {"cast"}


@pytest.mark.parametrize("text", ERRORS)
def test_the_error_is_the_closed_form(text):
    codec, rows = parse_codec(text), make_rows(60, 24)
    measured = float((draws(codec, rows, 4.0) - rows).square().sum(dim=(1, 2)).mean())
    assert measured == pytest.approx(ERRORS[text](rows), rel=0.02, abs=1e-9)


@pytest.mark.parametrize(("to", "digits"), [("bfloat16", 8), ("float16", 11)])
def test_cast_is_off_by_half_of_the_last_digit_at_most(to, digits):
    rows = make_rows(200, 64)
    error = (send(parse_codec(f"cast(to={to!r})"), rows, make_key(200), 2.0) - rows).abs()
    assert bool((error <= rows * 2.0**-digits + 1e-7).all())
    assert error.max() > 0


ADJOINT = [text for text in SPECS if parse_codec(text).backward == "adjoint"]


@pytest.mark.parametrize("shape", [(40, 64), (9, 13), (1, 5)])
@pytest.mark.parametrize("text", ADJOINT)
def test_gradients_go_back_through_the_adjoint(text, shape):
    codec, key, rate = parse_codec(text), make_key(shape[0]), 4.0
    x, y, other = (make_rows(*shape, torch.float64, seed=seed) for seed in range(3))
    packet = codec.encode(x, key, rate)
    forward = codec.decode(packet, key, rate, width=shape[1], dtype=x.dtype)
    adjoint = codec.adjoint(packet, *shape, rate, x.dtype)
    back = adjoint.encode(y, key, rate)
    if codec.is_fixed_size:
        assert len(back) == codec.adjoint_wire_bytes(*shape, rate, 8)
    returned = adjoint.decode(back, key, rate, width=shape[1], dtype=x.dtype)
    # <C x, y> == <x, C* y>
    assert float((forward * y).sum()) == pytest.approx(float((x * returned).sum()), rel=1e-12)
    # And for other rows through the same map.
    moved = adjoint.decode(adjoint.encode(other, key, rate), key, rate, width=shape[1], dtype=x.dtype)
    assert float((moved * y).sum()) == pytest.approx(float((other * returned).sum()), rel=1e-12)


WHOLE = ["identity", "cast", "cast(to='float16')", "low_rank", "relu_bitmap", "error_feedback", "stale"]
WHOLE += [text for text in SPECS if text.startswith("quantize")]


@pytest.mark.parametrize("text", WHOLE)
def test_constant_rows_come_back_up_to_the_last_digit_of_a_short_number(text):
    codec = parse_codec(text)
    for value in (0.0, 1.0, -2.5, 0.3, 1e-4, -7e3):
        rows = torch.full((5, 12), value)
        error = (send(codec, rows, make_key(5), 4.0) - rows).abs().max().item()
        # 0, 1 and -2.5 are short numbers themselves.
        assert error <= abs(value) * (1e-6 if value in (0.0, 1.0, -2.5) else 2.0**-7), value


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("text", SPECS)
def test_a_number_that_is_not_finite_is_refused_by_layer_and_node(text, bad):
    rows, key = make_rows(10, 12), make_key(10, epoch=4, layer=2)
    rows[6, 3] = bad
    told = rf"node {key.node_ids[6]} has {bad} in column 3: layer 2, forward, from rank 0 to rank 2, in epoch 4"
    with pytest.raises(DivergedError, match=told):
        parse_codec(text).encode(rows, key, 4.0, Memory())


@pytest.mark.parametrize("text", [text for text in SPECS if text not in ("low_rank", "boundary_sample")])
def test_large_numbers_are_not_taken_for_infinite_ones(text):
    rows = torch.full((300, 12), 8e37)
    rows[::2] *= -1
    rows[:, ::3] *= -1
    assert torch.isfinite(send(parse_codec(text), rows, make_key(300), 4.0)).all()


@pytest.mark.parametrize("text", ["subset", "subset(by='row')", "prefix", "topk"])
def test_a_lower_rate_keeps_what_a_higher_one_kept(text):
    codec, rows, key = parse_codec(text), make_rows(20, 64) + 1, make_key(20)
    kept = [send(codec, rows, key, rate) != 0 for rate in (32.0, 8.0, 4.0, 2.0)]
    for fewer, more in itertools.pairwise(kept):
        assert bool((more | ~fewer).all())
        assert int(more.sum()) > int(fewer.sum())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("quantise(bits=4)", r"Unknown codec 'quantise'. Choices: .*quantize.* Did you mean 'quantize'"),
        ("quantize(bits=3)", r"bits should be 1, 2, 4 or 8.*got 3"),
        ("cast(to='int8')", r"Unknown codec cast: to 'int8'. Choices: bfloat16, float16"),
        ("subset(by='rows')", r"Did you mean 'row'"),
        ("error_feedback(codec='subset(scale=True)')", "errors would grow"),
        ("error_feedback(codec='quantize(bits=1)')", "errors would grow"),
        ("error_feedback(codec=prefix)", "leaves out the same part always"),
        ("error_feedback(codec=cache)", "has a memory of its own"),
        ("cache(codec=error_feedback)", "has a memory of its own"),
        ("cache(age=-1)", "age should be 1 or more"),
        ("stale(codec=quantum)", r"Unknown codec 'quantum'"),
    ],
)
def test_settings_that_cannot_work_are_refused(text, told):
    with pytest.raises(ConfigError, match=told):
        parse_codec(text)

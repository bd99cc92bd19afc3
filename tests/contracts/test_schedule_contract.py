"""What every schedule promises. A new member is tested here by being in SCHEDULES."""

import dataclasses
import itertools
import math

import pytest

from laconic.comm.schedules import SCHEDULES, Costs, Line, Measured, RateContext, Schedule, parse_schedule
from laconic.comm.schedules.base import LineMeasure
from laconic.errors import ConfigError
from laconic.specs import format_spec

SPECS = [
    *(name for name in SCHEDULES if name != "budget"),
    "constant(value=1.0)",
    "linear(slope=5.0, most=128.0, epochs=300)",
    "linear(slope=1.0, most=128.0, least=1.5, epochs=7)",
    "linear(slope=7.3, most=2.0, epochs=3)",
    "exponential(most=32.0, least=2.0, epochs=50)",
    "step(rates=(1.0, 16.0, 1.0), at=(2, 191))",
    "step(rates=(4.0,), at=())",
    "switch(first=32.0, at=2)",
    "adaptive(most=32.0, tail=0.0, monotone=True)",
    "adaptive(most=64.0, num_bytes=100000)",
    "adaptive(most=64.0, calibrate=0, tail=0.0)",
    "budget(num_bytes=200000)",
    "budget(num_bytes=10000000)",
    "budget(num_bytes=123457, most=8.0, epochs=20)",
]
LINES = tuple(Line(layer, *pair) for layer in range(2) for pair in itertools.permutations(range(3), 2))


def num_bytes(line: Line, rate: float) -> int:
    return max(8, int((100 + 10 * line.sender + line.layer) / rate))


COSTS = Costs(LINES, num_bytes)


def rates_of(schedule: Schedule, num_epochs: int, *, error: float = 0.05) -> dict[tuple[int, Line], float]:
    """The rates of a run in which losses and gradients shrink, and errors grow with rates."""
    rates: dict[tuple[int, Line], float] = {}
    measured: tuple[Measured, ...] = ()
    for epoch in range(1, num_epochs + 1):
        context = RateContext(epoch, costs=COSTS, measured=measured, first_rate=32.0)
        for line in LINES:
            rates[epoch, line] = schedule.rate(dataclasses.replace(context, **line._asdict()))
        lines = {line: LineMeasure(rates[epoch, line], error * (1 - 1 / rates[epoch, line]), 1.0) for line in LINES}
        spent = sum(num_bytes(line, rates[epoch, line]) for line in LINES)
        measured += (Measured(2.0 / epoch, 1.0 / epoch, 0.0, spent, lines),)
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_name_of_a_schedule_is_its_file_and_its_shortest_spec(name):
    assert format_spec(parse_schedule(name), SCHEDULES) == name
    assert SCHEDULES[name].__module__ == f"laconic.comm.schedules.{name}"


@pytest.mark.parametrize("text", SPECS)
def test_every_rate_is_one_or_more_and_finite(text):
    rates = rates_of(parse_schedule(text), 310)
    assert all(rate >= 1 and math.isfinite(rate) for rate in rates.values())


@pytest.mark.parametrize("text", SPECS)
def test_a_schedule_is_a_function_of_its_context(text):
    # As on two ranks, and as after a resumption: nothing is remembered between calls.
    one, two = parse_schedule(text), parse_schedule(text)
    expected = rates_of(one, 40)
    rates_of(two, 5, error=0.9)
    assert rates_of(two, 40) == expected
    assert rates_of(one, 40) == expected


@pytest.mark.parametrize("text", SPECS)
def test_a_schedule_ends_where_it_says(text):
    schedule = parse_schedule(text)
    if schedule.end is None:
        assert isinstance(schedule, SCHEDULES["budget"] | SCHEDULES["adaptive"])
        return
    epoch, last = schedule.end
    rates = rates_of(schedule, max(epoch + 20, 310))
    assert all(rate == last for (when, _), rate in rates.items() if when >= epoch)
    if epoch > 1:
        assert any(rate != last for (when, _), rate in rates.items() if when == epoch - 1) or "adaptive" in text


@pytest.mark.parametrize("text", [text for text in SPECS if parse_schedule(text).is_falling])
def test_a_falling_schedule_never_rises(text):
    rates = rates_of(parse_schedule(text), 310)
    for epoch, line in rates:
        if epoch > 1:
            assert rates[epoch, line] <= rates[epoch - 1, line]


def test_the_rates_of_the_paper():
    schedule = parse_schedule("linear(slope=5.0, most=128.0, epochs=300)")
    assert schedule.rate(RateContext(1)) == 128.0
    assert schedule.rate(RateContext(31)) == pytest.approx(128 - 5 * 30 * 127 / 298)
    assert schedule.rate(RateContext(60)) > 1.0
    # k = 59.6 is where the line crosses 1: the 61st epoch, k = 60, is the first.
    assert schedule.rate(RateContext(61)) == 1.0
    # 81% of all bytes, not a 128th of them.
    shares = [1 / schedule.rate(RateContext(epoch)) for epoch in range(1, 301)]
    assert sum(shares) / 300 == pytest.approx(0.81, abs=0.005)


@pytest.mark.parametrize("budget", [0, 1, 137, 1000, 9999, 12345, 40000, 10**9])
@pytest.mark.parametrize("most", [4.0, 32.0])
def test_a_budget_is_met_within_one_line(budget, most):
    epochs = 20
    least, full = (epochs * COSTS.of_epoch(rate) for rate in (most, 1.0))
    schedule = parse_schedule(f"budget(num_bytes={least + budget}, most={most}, epochs={epochs})")
    rates = rates_of(schedule, epochs)
    spent = sum(num_bytes(line, rate) for (_, line), rate in rates.items())
    assert spent <= least + budget
    assert spent == full or least + budget - spent < max(num_bytes(line, 1.0) for line in LINES)
    # Cheap first, then all of it.
    assert [rate != 1.0 for rate in rates.values()] == sorted([rate != 1.0 for rate in rates.values()], reverse=True)


def test_a_budget_below_the_least_is_refused_with_the_least():
    least = 20 * COSTS.of_epoch(32.0)
    with pytest.raises(
        ConfigError, match=rf"20 epochs cost .*{least} bytes, at rate 32.*{least - 1} bytes of num_bytes"
    ):
        rates_of(parse_schedule(f"budget(num_bytes={least - 1}, most=32.0, epochs=20)"), 1)


@pytest.mark.parametrize("text", SPECS)
def test_no_rate_is_above_the_largest_that_a_schedule_was_told(text):
    schedule = parse_schedule(text)
    is_told = bool(getattr(schedule, "most", 1.0) and getattr(schedule, "first", 1.0))
    # Those that were told none begin at that of the context.
    assert max(rates_of(schedule, 310).values()) <= (schedule.largest if is_told else 32.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("constant(value=0.5)", "rate of 1 or more.*got 0.5"),
        ("constant(value='fast')", "should be a number"),
        ("linaer", r"Unknown schedule 'linaer'. Choices: .* Did you mean 'linear'"),
        ("linear(most=2.0, least=4.0)", "most is 2 and least is 4"),
        ("linear(slope=0.0)", "slope should be above 0"),
        ("exponential(epochs=2)", "epochs should be those of the whole run, 3 or more"),
        ("step(rates=(4.0, 2.0), at=())", "one more rate than epochs"),
        ("step(rates=(4.0, 2.0, 1.0), at=(9, 9))", "one more rate than epochs"),
        ("step(rates=(4.0, 0.0), at=(9,))", "rate of 1 or more"),
        ("switch(at=1)", "at should be an epoch after the first"),
        ("adaptive(tail=1.5)", "share between 0 and 1"),
        ("adaptive(theta=0.0)", "theta should be above 0"),
        ("budget(num_bytes=-1)", "0 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(text, told):
    with pytest.raises(ConfigError, match=told):
        parse_schedule(text)

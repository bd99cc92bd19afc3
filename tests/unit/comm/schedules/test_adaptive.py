"""The controller: each part of it alone, on numbers as a run would measure them."""

import itertools

import pytest

from laconic.comm.schedules import Costs, Line, Measured, RateContext, parse_schedule
from laconic.comm.schedules.base import LineMeasure
from laconic.errors import ConfigError

PAIRS = tuple(itertools.permutations(range(3), 2))
LINES = tuple(Line(layer, *pair) for layer in range(2) for pair in PAIRS)
COSTS = Costs(LINES, lambda line, rate: max(8, int(1000 / rate)))


def measured(
    lost: float | dict[Line, float] = 0.0,
    *,
    loss: float = 1.0,
    norm: float = 1.0,
    change: float = 0.0,
    rate: float = 16.0,
    num_bytes: int = 0,
) -> Measured:
    """An epoch whose lines have lost so much of a square of 1 each, or all of them together."""
    each = lost if isinstance(lost, dict) else {line: lost / len(LINES) for line in LINES}
    lines = {line: LineMeasure(rate, each.get(line, 0.0), 1.0) for line in LINES}
    return Measured(loss, norm, change, num_bytes, lines)


def rates_after(text: str, *epochs: Measured) -> dict[Line, float]:
    schedule = parse_schedule(text)
    context = RateContext(len(epochs) + 1, costs=COSTS, measured=epochs, first_rate=64.0)
    return {line: schedule.rate(RateContext(context.epoch, *line, COSTS, epochs, context.first_rate)) for line in LINES}


PLAIN = "adaptive(theta=0.5, most=64.0, calibrate=0)"


def test_rates_fall_while_the_error_is_above_its_target_and_rise_far_below():
    # All rows together have a square of 12: a quarter of that is allowed.
    assert set(rates_after(PLAIN, measured(8.0)).values()) == {8.0}
    assert set(rates_after(PLAIN, measured(2.9)).values()) == {16.0}
    assert set(rates_after(PLAIN, measured(0.5)).values()) == {32.0}
    assert set(rates_after("adaptive(most=64.0, calibrate=0, monotone=True)", measured(0.5)).values()) == {16.0}


def test_the_error_that_is_allowed_falls_with_the_gradient():
    early = measured(2.9, norm=1.0)
    assert set(rates_after(PLAIN, early, measured(2.9, norm=1.0)).values()) == {16.0}
    assert set(rates_after(PLAIN, early, measured(2.9, norm=0.5)).values()) == {8.0}


def test_bytes_go_to_the_lines_that_lose_most():
    lost = dict.fromkeys(LINES, 0.01)
    lost[LINES[4]], lost[LINES[7]] = 3.0, 1.3
    rates = rates_after(PLAIN, measured(lost))
    # The worst line alone brings the sum below 3.
    assert rates == {line: 8.0 if line == LINES[4] else 16.0 for line in LINES}
    lost[LINES[7]] = 2.8
    assert {line for line, rate in rates_after(PLAIN, measured(lost)).items() if rate == 8.0} == {LINES[4], LINES[7]}


def test_lines_that_lose_least_are_raised_first_and_no_more_than_the_target_allows():
    lost = dict.fromkeys(LINES, 0.001)
    lost[LINES[2]] = 0.7
    # Four times as much of each is below 3.
    assert set(rates_after(PLAIN, measured(lost)).values()) == {32.0}
    lost[LINES[2]] = 0.8
    assert rates_after(PLAIN, measured(lost)) == {line: 16.0 if line == LINES[2] else 32.0 for line in LINES}


def test_a_rate_that_was_too_high_is_not_tried_again_before_patience_is_over():
    high, low = measured(8.0, rate=32.0), measured(0.1, rate=16.0)
    text = "adaptive(most=64.0, calibrate=0, patience=4)"
    assert set(rates_after(text, high, low).values()) == {16.0}
    assert set(rates_after(text, high, low, low, low, low, measured(0.1, loss=0.1)).values()) == {32.0}


def test_every_so_often_an_epoch_goes_at_rate_1_and_the_rates_go_on_after_it():
    text = "adaptive(most=64.0, calibrate=3, tail=0.0)"
    two = measured(2.9), measured(2.9)
    assert set(rates_after(text, *two).values()) == {1.0}
    exact = measured(0.0, rate=1.0, change=0.2)
    assert set(rates_after(text, *two, exact).values()) == {16.0}
    assert set(rates_after("adaptive(most=64.0, calibrate=3, monotone=True)", *two).values()) == {16.0}


@pytest.mark.parametrize(("change", "rate"), [(40.0, 8.0), (0.5, 8.0), (0.2, 16.0), (0.1, 32.0), (0.01, 32.0)])
def test_the_target_follows_how_far_errors_were_seen_to_move_the_gradient(change, rate):
    # The gradient moves by 0.05 in any case; what is more is due to an error of 1, and may be a quarter: at 0.5 an
    # error of 0.56 is allowed, at 0.2 of 1.7, at 0.1 of 5, at 0.01 any.
    two = measured(1.0, change=0.05), measured(1.0, change=0.05)
    exact = measured(0.0, rate=1.0, change=change)
    text = "adaptive(theta=0.5, most=64.0, calibrate=3, tail=0.0)"
    rates = rates_after(text, *two, exact).values()
    # At 0.5, halving some is enough.
    assert set(rates) == ({8.0, 16.0} if change == 0.5 else {rate})
    # Without the calibration, an error of 1 of 12 is little.
    assert min(rates_after("adaptive(most=64.0, calibrate=0)", *two, measured(1.0)).values()) == 16.0


def test_a_loss_that_stands_still_halves_all_rates():
    text = "adaptive(most=64.0, patience=3, monotone=True)"
    still = [measured(0.1) for _ in range(6)]
    assert set(rates_after(text, *still).values()) == {8.0}
    falling = [measured(0.1, loss=0.9**k) for k in range(6)]
    assert set(rates_after(text, *falling).values()) == {16.0}


@pytest.mark.parametrize(("norm", "rate"), [(1.4, 16.0), (1.6, 8.0), (0.4, 8.0), (0.6, 16.0)])
def test_a_gradient_whose_length_changes_by_half_halves_all_rates(norm, rate):
    text = "adaptive(most=64.0, patience=3, monotone=True)"
    epochs = [measured(0.1, loss=0.9**k, norm=1.0 if k < 3 else norm) for k in range(6)]
    assert set(rates_after(text, *epochs).values()) == {rate}


@pytest.mark.parametrize("tail", [0.05, 0.1, 0.5])
def test_the_run_ends_in_epochs_without_loss(tail):
    schedule = parse_schedule(f"adaptive(most=64.0, epochs=40, tail={tail}, calibrate=0)")
    first = 40 - round(40 * tail) + 1
    # So little error that nothing else takes rates down.
    epochs = tuple(measured(1e-6, loss=0.9**k, rate=64.0) for k in range(40))
    for epoch in range(1, 41):
        rate = schedule.rate(RateContext(epoch, *LINES[0], COSTS, epochs[: epoch - 1], 64.0))
        assert (rate == 1.0) == (epoch >= first), epoch


def spend(text: str, num_epochs: int) -> int:
    """Bytes of a run with so much error that only a budget keeps rates up."""
    schedule, epochs = parse_schedule(text), ()
    for epoch in range(1, num_epochs + 1):
        rates = {line: schedule.rate(RateContext(epoch, *line, COSTS, epochs, 64.0)) for line in LINES}
        spent = sum(COSTS.num_bytes(line, rate) for line, rate in rates.items())
        lines = {line: LineMeasure(rate, 100.0 * (1 - 1 / rate), 1.0) for line, rate in rates.items()}
        epochs += (Measured(2.0 / epoch, 1.0 / epoch, 0.0, spent, lines),)
    return sum(one.num_bytes for one in epochs)


@pytest.mark.parametrize("share", [0.12, 0.3, 0.8])
def test_a_budget_is_kept_with_its_tail_and_calibrations(share):
    full = 40 * COSTS.of_epoch(1.0)
    text = "adaptive(most=64.0, epochs=40, tail=0.05, calibrate=20, num_bytes={})"
    budget = int(share * full)
    spent = spend(text.format(budget), 40)
    assert 0.5 * budget < spent <= budget
    # Rates take some epochs to come down.
    assert spend(text.format(0), 40) > 0.85 * full


def test_a_budget_that_cannot_be_kept_is_refused_with_the_least():
    schedule = parse_schedule("adaptive(most=64.0, epochs=40, tail=0.05, calibrate=20, num_bytes=30000)")
    # Two epochs of the tail, one of the two calibrations (the other is in the tail), and 37 at rate 64.
    least = 3 * COSTS.of_epoch(1.0) + 37 * COSTS.of_epoch(64.0)
    with pytest.raises(ConfigError, match=rf"40 epochs cost .* at least \({least} bytes: 3 epochs at rate 1"):
        schedule.check_costs(COSTS, 64.0)
    parse_schedule(f"adaptive(most=64.0, epochs=40, calibrate=20, num_bytes={least})").check_costs(COSTS, 64.0)


@pytest.mark.parametrize("calibrate", [-1, 1, 2])
def test_calibrations_that_cannot_compare_two_epochs_are_refused(calibrate):
    with pytest.raises(ConfigError, match="calibrate should be 3 epochs or more"):
        parse_schedule(f"adaptive(calibrate={calibrate})")

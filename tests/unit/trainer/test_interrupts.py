import signal
import threading

import pytest

from laconic.trainer.interrupts import Interrupts


@pytest.fixture(autouse=True)
def ctrl_c_is_heeded():
    """A shell that runs the tests in the background has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_remembered_and_ends_nothing(number):
    with Interrupts() as interrupts:
        assert interrupts.signal is None
        signal.raise_signal(number)
        assert interrupts.signal == number


def test_a_second_ctrl_c_ends_at_once():
    with Interrupts():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_after_sigterm_ends_at_once_but_the_first_signal_counts():
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.signal == signal.SIGTERM


def test_handlers_are_put_back_also_after_an_error():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    during = []

    def fail() -> None:
        with Interrupts():
            during.append(signal.getsignal(signal.SIGINT))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert during != before[:1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_user_is_told_what_is_happening(capfd):
    with Interrupts():
        signal.raise_signal(signal.SIGINT)
    assert "finishing the step and saving" in capfd.readouterr().err


def test_outside_the_main_thread_signals_are_left_to_the_host():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with Interrupts() as interrupts:
            seen.append((interrupts.signal, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(None, before)]


def test_ctrl_c_that_the_shell_has_us_ignore_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.signal is None
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

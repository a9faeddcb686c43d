"""The first signal asks, a second Ctrl-C ends at once, and the handlers of before come back."""

import os
import signal

import pytest

from dflash_exp.stop import SIGNALS, StopSignals


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_is_said_once(number: signal.Signals) -> None:
    said: list[str] = []
    with StopSignals(said.append) as stop:
        assert stop.requested is None
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)  # a second one that is no Ctrl-C changes nothing
        assert stop.requested == number.name
    assert said == [f"{number.name}: stopping after this step; Ctrl-C again ends at once"]


def test_a_second_ctrl_c_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), StopSignals(lambda _: None):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopSignals(lambda _: None):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in SIGNALS] == before

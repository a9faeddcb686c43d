"""A client on its own thread: in order, never in the way, one line when it fails or hangs."""

import threading
import time

import pytest

from dflash_exp.telemetry import background
from dflash_exp.telemetry.background import Background, described


def nothing() -> None:
    """A client whose modules are there already."""


def failing() -> list[int]:
    raise OSError("no room\nin the inn")


def test_calls_are_made_on_the_client_in_their_order_and_before_close_returns() -> None:
    made: list[int] = []
    sink = Background("sink", nothing, lambda: made, pytest.fail)
    for number in range(100):
        sink.submit(lambda client, number=number: client.append(number))
    sink.close(10)
    assert made == list(range(100))


def test_the_run_waits_for_the_client_s_modules_and_not_for_its_start() -> None:
    loaded, held = threading.Event(), threading.Event()

    def load() -> None:
        time.sleep(0.2)
        loaded.set()

    sink = Background("sink", load, lambda: held.wait(10), pytest.fail)
    assert loaded.is_set()
    held.set()
    sink.close(10)


def test_a_client_that_cannot_start_is_said_once_and_asked_nothing() -> None:
    said: list[str] = []
    sink = Background("W&B", nothing, failing, said.append)
    for _ in range(3):
        sink.submit(lambda client: said.append("called"))
    sink.close(10)
    assert said == ["W&B failed (OSError: no room); the run goes on, metrics.jsonl holds every record"]


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyError("gone")])
def test_a_call_that_fails_is_said_once_and_those_behind_it_are_made(error: BaseException) -> None:
    said: list[str] = []
    made: list[str] = []

    def fail(client: list[str]) -> None:
        raise error

    sink = Background("sink", nothing, lambda: made, said.append)
    for call in (fail, fail, lambda client: client.append("made"), fail):
        sink.submit(call)
    sink.close(10)
    assert made == ["made"]
    assert said == [f"sink failed ({described(error)}); the run goes on, metrics.jsonl holds every record"]


def test_a_client_that_hangs_costs_one_line_and_the_time_limit_of_close() -> None:
    said: list[str] = []
    held = threading.Event()
    sink = Background("sink", nothing, lambda: held, said.append)
    started_s = time.monotonic()
    for _ in range(5):
        sink.submit(lambda client: client.wait(60))
    assert time.monotonic() - started_s < 30
    sink.close(0.2)
    assert 0.2 <= time.monotonic() - started_s < 30
    assert said == ["sink has not answered for 0 s; the run goes on, metrics.jsonl holds every record"]
    held.set()


def test_more_calls_than_there_is_room_for_are_dropped_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "ROOM", 3)
    said: list[str] = []
    held = threading.Event()
    sink = Background("sink", nothing, lambda: held, said.append)
    started_s = time.monotonic()
    for _ in range(10):
        sink.submit(lambda client: client.wait(60))
    assert time.monotonic() - started_s < 30
    sink.close(0.1)
    assert said == ["sink does not keep up, 3 calls wait; the run goes on, metrics.jsonl holds every record"]
    held.set()

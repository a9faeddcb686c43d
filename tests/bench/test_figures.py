"""Figures stand beside their targets, and what is timed is a median over interleaved rounds."""

import io
import json

import pytest
from rich.console import Console

from dflash_exp.bench import figures
from dflash_exp.bench.figures import Figure, Timed, figures_json, figures_table, timed


def figure(value: float, target: float | None, at_least: bool = False) -> Figure:
    return Figure("a group", "a thing", value, "share", target, at_least)


def test_calls_take_turns_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    called = ""
    lasting = iter([9.0, 9.0, 0.002, 3.0, 0.001, 1.0, 0.004, 2.0])
    now = 0.0

    def call(name: str) -> None:
        nonlocal called, now
        called += name
        now += next(lasting)

    monkeypatch.setattr(figures.time, "perf_counter", lambda: now)
    calls = [
        Timed("group", "a", lambda: call("a"), "ms", 3.0),
        Timed("group", "b", lambda: call("b"), "s", 1.5),
    ]
    first, second = timed(calls, 3)
    assert called == "abababab"
    assert (first.value, second.value) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (first.holds, second.holds) == (True, False)


def test_a_target_is_an_upper_bound_or_a_lower_one_and_is_met_by_itself() -> None:
    assert [figure(value, 2.0).holds for value in (1.9, 2.0, 2.1)] == [True, True, False]
    assert [figure(value, 2.0, at_least=True).holds for value in (1.9, 2.0, 2.1)] == [False, True, True]
    assert figure(1.0, None).holds is None


def test_the_table_says_which_targets_are_missed() -> None:
    said = io.StringIO()
    shown = [figure(0.0311, 0.02), figure(0.981, 0.97, at_least=True), Figure("other", "time", 12.34, "ms", 50.0)]
    Console(file=said, width=100).print(figures_table(shown, 5))
    lines = said.getvalue().splitlines()
    assert "medians of 5 rounds" in lines[0]
    assert sum("a group" in line for line in lines) == 1
    (missed,) = (line for line in lines if "missed" in line)
    assert "3.11 %" in missed and "<= 2.00 %" in missed
    assert any("98.10 %" in line and ">= 97.00 %" in line for line in lines)
    assert any("12.3 ms" in line and "<= 50 ms" in line for line in lines)


def test_json_is_one_object_with_every_figure() -> None:
    found = json.loads(figures_json([figure(0.5, 0.6), figure(1.0, None)], 3))
    assert found == {
        "rounds": 3,
        "figures": [
            {"group": "a group", "what": "a thing", "value": 0.5, "unit": "share", "target": 0.6, "at_least": False,
             "holds": True},
            {"group": "a group", "what": "a thing", "value": 1.0, "unit": "share", "target": None, "at_least": False,
             "holds": None},
        ],
    }  # fmt: skip

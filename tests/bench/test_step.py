"""The figures of `bench step`: which there are, whose time is whose, and the limit worked out by hand."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_exp.bench.made_up_step import Size, given, step_on
from dflash_exp.bench.roofline import step_bytes, step_operations
from dflash_exp.bench.step import PARTS, Axes, show_step, spent_by_part
from dflash_exp.cli import main
from dflash_exp.compare.growth_figure import Growth

TINY = Size("tiny", (40,), 3, 4, 4.0, 30)


@dataclass
class Event:
    name: str
    cpu_time_total: float
    cpu_parent: "Event | None" = None


def test_every_part_the_limit_and_every_power_are_there_as_one_json_object_and_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    axes = Axes(TINY, tokens=(40, 80), anchors=(2, 4), vocabularies=(30, 60), layers=(1, 2))
    assert show_step(1, True, tmp_path / "growth.png", axes) == 0
    found = json.loads(capsys.readouterr().out)["figures"]
    by_group: dict[str, dict[str, float]] = {}
    for figure in found:
        by_group.setdefault(figure["group"], {})[figure["what"]] = figure["value"]
    assert by_group["tiny"]["a step"] > 0
    assert list(by_group["where its time goes"]) == [*PARTS, "all else"]
    assert sum(by_group["where its time goes"].values()) == pytest.approx(1)
    assert all(share > 0 for share in by_group["where its time goes"].values())
    assert list(by_group["grows with the power"]) == ["tokens", "anchors", "vocabulary", "layers"]
    assert len(by_group["its limit"]) == 6
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_an_event_inside_a_part_is_that_part_s_whatever_it_is_by_itself() -> None:
    step = Event("bench step", 100.0)
    attention = Event("_BlockAttention", 30.0, step)
    inside = Event("aten::copy_", 7.0, Event("aten::to", 8.0, attention))
    copy = Event("aten::copy_", 5.0, Event("aten::reshape", 6.0, step))
    spent = spent_by_part([step, attention, inside, copy, Event("aten::mul", 9.0, step)])
    assert (spent["attention"], spent["copies"], spent["bench step"]) == (30.0, 5.0, 100.0)
    assert sum(spent.values()) == 135.0


def test_a_power_is_fitted_in_the_logarithm() -> None:
    assert Growth("tokens", (2, 4, 8), (12.0, 48.0, 192.0)).exponent == pytest.approx(2)
    assert Growth("tokens", (1, 2, 4), (1.0, 3.0, 4.0)).exponent == pytest.approx(1)


def test_operations_and_bytes_worked_out_by_hand() -> None:
    on = given(Size("one", (12,), 1, 2, 4.0, 10, n_layers=1))
    at = int(on.features.batch.anchor_position_A)
    # one anchor at `at`, two slots, of which the second is a query; hidden 192, intermediate 512, taps 2
    context = 2 * at * 2 * 192 * 192 + 3 * at * 192 * 2 * 96
    projections = 3 * 192 * (1 * 192 + 2 * 2 * 96 + 1 * 192)
    attention = 6 * 192 * (at + 2)
    multiply_adds = context + projections + attention + 3 * 3 * 192 * 512 + 2 * 192 * 10
    assert step_operations(on) == 2 * multiply_adds
    layer = 192 * (2 * 192 + 2 * 96 + 3 * 512) + 2 * 192 + 2 * 48
    parameters = layer + 2 * 192 * 192 + 2 * 192
    assert step_bytes(on) == 4 * (8 * parameters + 12 * 2 * 192 + 10 * 192 + 2 * 2 * 192)


def test_the_made_up_step_learns_its_batch() -> None:
    on = given(TINY)
    step = step_on(on)
    losses = []
    for _ in range(20):
        sums = step.accumulate(on.features)
        losses.append(float(sums.loss))
        step.finish(sums.weight)
    assert losses[-1] < 0.9 * losses[0]


def test_the_verb_takes_a_figure_for_a_step_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plan", "--figure", "x.png"]) == 2
    assert "--figure must go with bench step, got it with bench plan; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("figure", ["growth.doc", "nowhere/growth.png"])
def test_a_figure_that_cannot_be_written_is_one_line_before_anything_is_measured(
    figure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "step", "--figure", figure]) == 2
    assert f"--figure must be a .png file in a folder that is there, got {figure}" in capsys.readouterr().err

"""The bench's arithmetic, and that the overlapped line comes near its bound."""

import json

import numpy as np
import pytest

from dflash_exp.bench.line import Simulation, SleepingStages, bench_line
from dflash_exp.cli import main


def test_the_bound_is_the_work_of_the_slowest_stage_over_its_workers() -> None:
    stages = SleepingStages(Simulation(n_items=10), 0)
    stages.spent_s[:] = np.array([0.005, 0.06, 0.01])[:, None]
    assert stages.bound_s(3) == pytest.approx(10 * 0.06 / 3)
    assert stages.bound_s(60) == pytest.approx(10 * 0.01)


def test_the_line_takes_at_least_its_bound_and_far_less_than_one_stage_after_the_other() -> None:
    figures = bench_line(Simulation(n_items=60, unit_s=0.004), rounds=1)
    one_after_the_other = 1.0 / 4.2  # of the bound
    assert 2 * one_after_the_other < figures.share_of_bound <= 1.0
    assert figures.rounds == 1


def test_the_verb_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "line", "--rounds", "1", "--items", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simulation"]["n_items"] == 20 and 0 < found["share_of_bound"] <= 1.0
    assert main(["bench", "line", "--rounds", "0"]) == 2
    assert "--rounds must be >= 1, got 0" in capsys.readouterr().err

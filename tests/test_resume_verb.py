"""What is missing of a sweep, or was stopped, is run from the configurations that were frozen when it began."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from dflash_exp import between_steps
from dflash_exp.cli import main
from dflash_exp.messages import StepResult
from dflash_exp.telemetry.metrics import Metrics
from tests.world import World, make_world, result_of, results_only


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def command(world: World, sweep_dir: Path, *more: str) -> list[str]:
    typed = [override for override in world.overrides("x") if not override.startswith("run_dir")]
    orders = ["interleave=shuffle,tijdeman", "evaluate=false", f"hydra.sweep.dir={sweep_dir}"]
    return ["train", "-m", *typed, *orders, *more]


def test_a_sweep_that_was_stopped_goes_on_from_what_was_frozen(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(command(world, whole)) == 0
    step_metrics = between_steps.step_metrics

    def stop_after_the_first(result: StepResult) -> Metrics:
        os.kill(os.getpid(), signal.SIGUSR2)
        return step_metrics(result)

    with monkeypatch.context() as patch:
        patch.setattr(between_steps, "step_metrics", stop_after_the_first)
        assert main(command(world, stopped)) == 75
    moved = tmp_path / "moved"
    stopped.rename(moved)
    capsys.readouterr()
    assert main(["status", str(moved)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:2]] == ["stopped", "missing"]
    assert main(["resume", str(moved)]) == 0
    assert "to run: 1 stopped, 1 missing\n" in capsys.readouterr().err
    jobs = json.loads((moved / "sweep.json").read_text())["jobs"]
    assert jobs == json.loads((whole / "sweep.json").read_text())["jobs"] and len(jobs) == 2
    for job in jobs:
        assert results_only(moved / job["run_dir"]) == results_only(whole / job["run_dir"])
    assert not stopped.exists()
    assert main(["resume", str(moved)]) == 0
    assert "to run: nothing; left as they are: 2 finished\n" in capsys.readouterr().err


def test_what_failed_runs_again_only_when_asked_for_or_named(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_dir = tmp_path / "s"
    main(command(world, sweep_dir, "steps=2", "epochs=null"))
    first, second = (sweep_dir / job["run_dir"] for job in json.loads((sweep_dir / "sweep.json").read_text())["jobs"])
    failed: dict[str, Any] = {"status": "failed", "error": "RuntimeError: it broke"}
    for run_dir in (first, second):
        (run_dir / "result.json").write_text(json.dumps(result_of(run_dir) | failed))
    capsys.readouterr()
    assert main(["resume", str(sweep_dir)]) == 0
    assert "left as they are: 2 failed (--failed runs what failed, too)" in capsys.readouterr().err
    assert main(["resume", str(first)]) == 0
    assert [result_of(run_dir)["status"] for run_dir in (first, second)] == ["finished", "failed"]
    assert main(["resume", str(sweep_dir), "--failed"]) == 0
    assert result_of(second)["status"] == "finished"


def test_a_job_whose_frozen_configuration_is_gone_is_refused_in_one_line(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep_dir = tmp_path / "s"
    main(command(world, sweep_dir, "steps=1", "epochs=null"))
    job = json.loads((sweep_dir / "sweep.json").read_text())["jobs"][1]["run_dir"]
    shutil.rmtree(sweep_dir / job)
    capsys.readouterr()
    assert main(["resume", str(sweep_dir)]) == 2
    assert f"{job}/submitted/config.yaml must hold a job's configuration, got no file" in capsys.readouterr().err

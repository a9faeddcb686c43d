"""A sweep on one machine, some runs at a time: the results of one after the other, and one failure loses one row."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dflash_exp.cli import main
from dflash_exp.launch.job import devices_of
from dflash_exp.run_state import run_state
from tests.world import World, make_world, results_only


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def command(world: World, sweep_dir: Path, *more: str) -> list[str]:
    typed = [override for override in world.overrides("x") if not override.startswith("run_dir")]
    return ["train", "-m", *typed, "evaluate=false", f"hydra.sweep.dir={sweep_dir}", *more]


def run_dirs(sweep_dir: Path) -> list[Path]:
    return [sweep_dir / job["run_dir"] for job in json.loads((sweep_dir / "sweep.json").read_text())["jobs"]]


def test_side_by_side_or_in_turn_the_results_are_the_same_and_a_failure_loses_one_row(
    world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = ["optim.lr=0.01,1e30", "seed=0"]
    assert main(command(world, tmp_path / "beside", *asked, "hydra/launcher=local", "hydra.launcher.n_jobs=2")) == 1
    said = capfd.readouterr().err
    assert "/2] 0-embedded-stride_jitter-s0-" in said and ": failed (exit code 1) after" in said
    assert main(command(world, tmp_path / "turn", *asked)) == 1
    beside, turn = run_dirs(tmp_path / "beside"), run_dirs(tmp_path / "turn")
    words = {run_dir.name: run_state(run_dir).word for run_dir in beside}
    assert sorted(words.values()) == ["failed", "finished"]
    assert [run_dir.name for run_dir in beside] == [run_dir.name for run_dir in turn]
    for one, other in zip(beside, turn, strict=True):
        assert words[one.name] == run_state(other).word and results_only(one) == results_only(other)
        assert (one / "logs" / "run.out").stat().st_size > 0


def test_a_stop_goes_to_all_that_run_and_the_same_command_goes_on(world: World, tmp_path: Path) -> None:
    local = ["hydra/launcher=local", "hydra.launcher.n_jobs=2", "seed=0,1,2", "epochs=400"]
    arguments = command(world, tmp_path / "s", *local)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-m", "dflash_exp.cli", *arguments], env=environment)
    until_s = time.monotonic() + 120
    while len(list((tmp_path / "s").glob("*/metrics.jsonl"))) < 2:
        assert time.monotonic() < until_s and process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert [run_state(run_dir).word for run_dir in run_dirs(tmp_path / "s")] == ["stopped", "stopped", "missing"]


def test_a_debugged_sweep_ends_with_its_first_failure(world: World, tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError):
        main(command(world, tmp_path / "s", "optim.lr=1e30", "seed=0,1", "hydra/launcher=debug"))
    assert [run_state(run_dir).word for run_dir in run_dirs(tmp_path / "s")] == ["failed", "missing"]


def test_cuda_devices_are_shared_out() -> None:
    assert [devices_of(place, 2, ["4", "5", "6", "7"])["CUDA_VISIBLE_DEVICES"] for place in range(2)] == ["4,5", "6,7"]
    assert [devices_of(place, 3, ["a", "b"])["CUDA_VISIBLE_DEVICES"] for place in range(3)] == ["a", "b", "a"]
    assert devices_of(0, 3, []) == {}

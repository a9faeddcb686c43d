"""Any stop, then the same command: the same results as never stopped, bit for bit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_exp.compose import compose
from dflash_exp.experiment import run
from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError
from dflash_exp.telemetry.sinks import read_records
from tests.lengths import full_or
from tests.world import World, make_world, result_of, results_only

ROOT = Path(__file__).parents[1]
OFTEN = ("checkpoint.every_steps=2", "epochs=2", "probe.every_steps=3", "evaluate=false")
"""About ten steps, five checkpoints."""
LAST_WRITE = 5


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def unbroken(world: World) -> Path:
    return world.train("unbroken", *OFTEN)


def in_a_process(world: World, run_dir: str, place: str, times: int, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests" / "resume_script.py"), place, str(times)]
    command += world.overrides(run_dir, *OFTEN, *more)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def final_weights(run_dir: Path) -> bytes:
    latest = (run_dir / "checkpoints" / "latest").read_text().strip()
    return (run_dir / "checkpoints" / latest / "model.safetensors").read_bytes()


def hashes(run_dir: Path) -> dict[str, str]:
    return {name: value for name, value in result_of(run_dir).items() if name.endswith("_sha256")}


def assert_same(run_dir: Path, unbroken: Path) -> None:
    assert results_only(run_dir) == results_only(unbroken)
    assert final_weights(run_dir) == final_weights(unbroken)
    assert hashes(run_dir) == hashes(unbroken) and len(hashes(run_dir)) == 5
    assert result_of(run_dir)["dynamics"] == result_of(unbroken)["dynamics"]
    assert not [p for p in (run_dir / "checkpoints").iterdir() if p.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "times"),
    [
        ("in a write", 7),
        ("before latest", LAST_WRITE),
        *full_or([("between writes", 6), ("in a sync", 8)], []),
    ],
)
def test_a_run_that_was_killed_anywhere_goes_on_as_if_nothing_had_been(
    world: World, unbroken: Path, place: str, times: int
) -> None:
    name = f"killed_{place.replace(' ', '_')}_{times}"
    died = in_a_process(world, name, place, times)
    assert died.returncode == -9, died.stderr
    run_dir = world.train(name, *OFTEN)
    assert_same(run_dir, unbroken)
    assert result_of(run_dir)["restarts"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("signal", full_or(["SIGINT", "SIGUSR2"], ["SIGUSR2"]))
def test_a_run_that_is_asked_to_stop_finishes_its_step_saves_and_exits_with_75(
    world: World, unbroken: Path, signal: str
) -> None:
    name = f"stopped_{signal}"
    stopped = in_a_process(world, name, signal, 3)
    assert stopped.returncode == 75, stopped.stderr
    assert "the same command goes on" in stopped.stdout
    result = result_of(world.root / name)
    assert result["status"] == "stopped" and result["steps"] in (3, 4)
    checkpoint = f"step-{result['steps']:08d}"
    assert (world.root / name / "checkpoints" / "latest").read_text().strip() == checkpoint
    assert_same(world.train(name, *OFTEN), unbroken)


def test_a_stop_asked_for_while_the_models_load_trains_nothing(world: World, unbroken: Path) -> None:
    stopped = in_a_process(world, "at_once", "while it loads", 1)
    assert stopped.returncode == 75, stopped.stderr
    assert "stopped after step 0: the same command goes on" in stopped.stdout
    assert (result_of(world.root / "at_once")["steps"], result_of(world.root / "at_once")["epochs"]) == (0, 0)
    assert_same(world.train("at_once", *OFTEN), unbroken)


def test_records_behind_the_checkpoint_are_put_aside_and_made_again(world: World, unbroken: Path) -> None:
    name = "torn"
    assert in_a_process(world, name, "SIGTERM", 3).returncode == 75
    folder = world.root / name
    step = result_of(folder)["steps"]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step + 1}) + "\n" + '{"step": ')
    assert_same(world.train(name, *OFTEN), unbroken)
    assert (folder / "metrics.discarded-1.jsonl").read_text() == f'{{"step": {step + 1}}}\n{{"step": '
    assert [record["step"] for record in read_records(folder / "metrics.jsonl")] == list(
        range(1, result_of(folder)["steps"] + 1)
    )


def test_a_damaged_newest_checkpoint_costs_the_steps_since_the_one_before(
    world: World, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world.root / "damaged"
    shutil.copytree(unbroken, folder)
    (folder / "result.json").unlink()
    latest = (folder / "checkpoints" / "latest").read_text().strip()
    (folder / "checkpoints" / latest / "state.pt").write_bytes(b"half")
    assert_same(world.train("damaged", *OFTEN), unbroken)
    said = capsys.readouterr().out
    assert f"checkpoint {latest} is damaged" in said and "goes on after step" in said


def test_another_configuration_in_the_same_directory_is_refused_and_nothing_is_touched(
    world: World, unbroken: Path
) -> None:
    folder = world.root / "other"
    shutil.copytree(unbroken, folder)
    (folder / "result.json").unlink()
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    overrides = world.overrides("other", *OFTEN, "optim.lr=0.5")
    with pytest.raises(ConfigError, match=r"differs in optim\.lr \(0\.02 there, 0\.5 here\)"):
        run(compose(overrides), overrides, StopSignals())
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


def test_another_plan_is_refused(world: World, unbroken: Path) -> None:
    folder = world.root / "replanned"
    shutil.copytree(unbroken, folder)
    (folder / "result.json").unlink()
    plan = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps(plan | {"plan_sha256": "0" * 64}))
    overrides = world.overrides("replanned", *OFTEN)
    with pytest.raises(ConfigError, match=r"differs in what it follows from \(plan_sha256\)"):
        run(compose(overrides), overrides, StopSignals())


def test_topology_checkpoint_and_telemetry_may_change_on_the_way(world: World, unbroken: Path) -> None:
    assert in_a_process(world, "elsewhere", "SIGTERM", 4).returncode == 75
    changed = ("topology.target_workers=2", "checkpoint.every_steps=1", "checkpoint.keep_last=5")
    assert_same(world.train("elsewhere", *OFTEN, *changed), unbroken)


def test_a_cache_may_come_and_go_on_the_way(world: World, unbroken: Path) -> None:
    disk = ("target.cache=disk", f"target.cache_dir={world.root / 'features'}")
    assert in_a_process(world, "cached", "SIGTERM", 4, *disk).returncode == 75
    assert_same(world.train("cached", *OFTEN), unbroken)
    assert_same(world.train("from_cache", *OFTEN, *disk), unbroken)
    assert result_of(world.root / "from_cache")["target_cache_by_rank"][0]["found"] > 0


def test_a_run_stopped_while_it_decodes_has_nothing_left_to_train(world: World) -> None:
    run_dir = world.train("decoded", "evaluate=false")
    (run_dir / "result.json").unlink()
    n_records = len(read_records(run_dir / "metrics.jsonl"))
    world.train("decoded")
    assert result_of(run_dir)["status"] == "finished" and (run_dir / "evaluation.json").exists()
    assert len(read_records(run_dir / "metrics.jsonl")) == n_records

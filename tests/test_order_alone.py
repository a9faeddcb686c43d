"""A sweep over order is refused before its first job unless its arms can differ in order alone."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.order_alone import Arm, Trained, check_batches, check_order_alone, check_settings
from tests.world import World, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def arms(world: World, *of_each: list[str]) -> list[Arm]:
    return [Arm(f"{i}-x", compose(world.overrides("x", *overrides))) for i, overrides in enumerate(of_each)]


ORDERS = (["interleave=shuffle"], ["interleave=tijdeman"], ["interleave=stride_jitter", "interleave.jitter_strides=0"])


@pytest.mark.parametrize("length", [[], ["epochs=3"], ["epochs=1", "pipeline=lockstep"]])
def test_strategies_over_whole_epochs_differ_in_order_alone(world: World, length: list[str]) -> None:
    assert check_order_alone(arms(world, *(order + length for order in ORDERS))) is None


def test_another_seed_s_batches_are_another_block(world: World) -> None:
    blocks = [[*order, f"seed={seed}"] for seed in (0, 1) for order in ORDERS]
    assert check_order_alone(arms(world, *blocks)) is None


OTHER = {
    "seeds.data=7": r"differ in seeds\.data \(0 and 7\)",
    "seeds.init=7": r"differ in seeds\.init \(0 and 7\)",
    "seeds.anchors=7": r"differ in seeds\.anchors \(0 and 7\)",
    "batches.budget_tokens=128": r"differ in batches\.budget_tokens \(96 and 128\)",
    "optim.lr=0.5": r"0-x and 1-x differ in optim\.lr \(0\.02 and 0\.5\); say analysis\.differs_in=setting",
}


@pytest.mark.parametrize(("override", "line"), OTHER.items())
def test_whatever_else_differs_is_named(world: World, override: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        check_order_alone(arms(world, ORDERS[0], [*ORDERS[1], override]))


def test_how_a_run_runs_and_the_seed_of_the_order_may_differ(world: World) -> None:
    one, two = arms(world, ORDERS[0], [*ORDERS[0], "seeds.order=9", "pipeline=lockstep", "evaluate=false"])
    check_settings(one, two)


def test_batches_are_compared_in_every_epoch() -> None:
    same, other = Trained(("a", "b"), 8, 8), Trained(("a", "c"), 8, 8)
    check_batches(["x", "y"], [same, same])
    with pytest.raises(ValueError, match="same batches in every epoch, x and z do not"):
        check_batches(["x", "y", "z"], [same, same, other])


def test_a_run_that_ends_within_an_epoch_is_refused_or_said(world: World) -> None:
    n_steps = len(steps_of(world))
    one, more = ["epochs=null", "steps=3"], ["epochs=null", f"steps={n_steps + 2}"]
    with pytest.raises(ValueError, match=rf"^after 3 of {n_steps} steps the arms .* different batches; set epochs=1$"):
        check_order_alone(arms(world, *(order + one for order in ORDERS)))
    with pytest.raises(ValueError, match=rf"^after {n_steps + 2} of \d+ steps .*; set epochs=2$"):
        check_order_alone(arms(world, *(order + more for order in ORDERS)))
    allowed = arms(world, *([*order, *one, "partial=allow"] for order in ORDERS))
    said = f"after 3 of {n_steps} steps the arms have trained on different batches; partial=allow lets them"
    assert check_order_alone(allowed) == said


def steps_of(world: World) -> list[object]:
    from dflash_exp.planning import plan_run

    return list(plan_run(compose(world.overrides("x"))).settings)


SWEEP = """\
# @package _global_
analysis: {primary_metric: probe/loss, baseline: interleave=shuffle, contrast: interleave=tijdeman, margin: 0.01,
           seeds: 1, differs_in: order}
hydra: {mode: MULTIRUN, sweep: {dir: s}, sweeper: {params: {interleave: "shuffle,tijdeman"}}}
"""


def test_a_sweep_is_refused_before_its_first_job_and_before_it_is_written_down(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Any] = []
    fake: Any = ModuleType("fake")
    fake.start = lambda config, overrides, stop: started.append(config) or 0
    monkeypatch.setitem(sys.modules, "dflash_exp.rank", fake)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine" / "sweeps"
    folder.mkdir(parents=True)
    (folder / "orders.yaml").write_text(SWEEP)
    typed = [override for override in world.overrides("x") if not override.startswith(("run_dir", "epochs", "steps"))]
    command = ["train", "--config-dir", "mine", "sweeps=orders", *typed]
    assert main([*command, "steps=3"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("dflash-exp: after 3 of ") and line.endswith("; set epochs=1\n") and line.count("\n") == 1
    assert main([*command, "epochs=1", "batches.budget_tokens=96,128"]) == 2
    assert re.search(r"differ in batches\.budget_tokens \((96 and 128|128 and 96)\)", capsys.readouterr().err)
    assert started == [] and not Path("s").exists()
    assert main([*command, "steps=3", "partial=allow"]) == 0
    assert "dflash-exp: after 3 of " in capsys.readouterr().err
    assert len(started) == len(json.loads(Path("s/sweep.json").read_text())["jobs"]) == 2
    assert main([*command, "steps=3", "partial=allow", "optim.lr=0.5"]) == 2
    assert "differ in optim.lr (0.02 and 0.5)" in capsys.readouterr().err

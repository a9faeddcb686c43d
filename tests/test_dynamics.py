"""Whole runs with something put into them: what was forgotten is called so, what was not is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dflash_exp.drafter.step import DrafterStep, StepOutcome
from dflash_exp.telemetry.dynamics.jumps import JumpWatch
from tests.lengths import full_or
from tests.world import World, make_world, result_of, results_only

LONG = (
    "epochs=null", "steps=230", "batches_per_step=1", "evaluate=false", "probe.every_steps=20", "pipeline=lockstep",
    "probe.prompts=0", "optim.schedule=constant", "optim.lr=0.005",
)  # fmt: skip
STILL = ("optim.lr=0", "optim.adamw_lr=0")
PUT_IN_AT = 200
plain_finish, plain_add = DrafterStep.finish, JumpWatch.add


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def counting(act: Callable[[int, Any], None]) -> Callable[..., StepOutcome]:
    """The end of a step, before which something happens to the n-th."""
    n_steps = 0

    def finish(step: DrafterStep, denominator: float) -> StepOutcome:
        nonlocal n_steps
        n_steps += 1
        act(n_steps, step)
        return plain_finish(step, denominator)

    return finish


def spoil_weights(n: int, step: DrafterStep) -> None:
    if n == PUT_IN_AT:
        draw = torch.Generator().manual_seed(0)
        for parameter in step.drafter.parameters():
            parameter.data += 0.5 * torch.randn(parameter.shape, generator=draw)


def race(n: int, step: DrafterStep) -> None:
    if PUT_IN_AT <= n < PUT_IN_AT + 10:
        for part, _ in step.optimizer._parts:  # type: ignore[attr-defined]
            for group in part.param_groups:
                group["lr"] *= 20


@pytest.mark.parametrize("act", [spoil_weights, race])
def test_weights_that_were_spoilt_and_ten_steps_at_twenty_times_the_rate_are_forgetting(
    world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[int, Any], None]
) -> None:
    """At a rate of .01: twenty times .005 goes too far for a jump in two of three seeds only."""
    monkeypatch.setattr(DrafterStep, "finish", counting(act))
    run_dir = world.train(act.__name__, *LONG, "optim.lr=0.01")
    found = result_of(run_dir)["dynamics"]
    kinds = [jump["kind"] for jump in found["jumps"]]
    assert kinds and set(kinds) <= {"forgetting", "both"} and f"{kinds[0]} at step" in found["in_words"], found
    assert all(PUT_IN_AT <= jump["step"] < PUT_IN_AT + 15 for jump in found["jumps"])
    told = {record["step"]: record["dynamics/jump"] for record in results_only(run_dir) if "dynamics/jump" in record}
    assert list(told.values()) == kinds and list(told) == [jump["step"] + 2 for jump in found["jumps"]]


@pytest.mark.parametrize("order", ["sequential", "shuffle"])
def test_where_nothing_is_learned_a_jump_is_composition_and_its_probe_changes_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    arm = (*LONG, *STILL, f"interleave={order}", f"steps={full_or(230, 100)}")
    found = result_of(world.train(f"still_{order}", *arm))["dynamics"]
    assert {jump["kind"] for jump in found["jumps"]} <= {"composition"} and found["largest_probe_rise"] == 0.0
    monkeypatch.setattr(JumpWatch, "add", lambda watch, *a: plain_add(watch, *a) or watch._raw.__len__() == 70)
    put_in = result_of(world.train(f"put_in_{order}", *arm))["dynamics"]
    assert {jump["kind"] for jump in put_in["jumps"]} == {"composition"}
    assert put_in["in_words"].endswith("the probe never rose by more than 0.0 %: no forgetting")


def test_the_probe_of_a_jump_leaves_training_as_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    few = f"steps={full_or(230, 120)}"
    plain = world.train("plain", *LONG, few)
    monkeypatch.setattr(JumpWatch, "add", lambda watch, *a: plain_add(watch, *a) or len(watch._raw) % 15 == 0)
    probed = world.train("probed", *LONG, few)
    records = results_only(probed)
    told = [record["step"] for record in records if "dynamics/jump" in record]
    assert len(told) > 5
    rest = [{name: v for name, v in record.items() if not name.startswith("dynamics/jump")} for record in records]
    assert rest == results_only(plain)
    assert result_of(probed)["final_probe"] == result_of(plain)["final_probe"]

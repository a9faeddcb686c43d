"""A jump is told from noise, and composition from forgetting, seed after seed."""

import json

import numpy as np
import pytest

from dflash_exp.messages import LossSums, StepResult
from dflash_exp.telemetry.dynamics.jumps import Jump, in_words, kind_of, rise_of, stands_out
from dflash_exp.telemetry.dynamics.watch import Dynamics
from tests.lengths import full_or

MEANS, NOISE = [1.0, 1.1, 1.2, 1.3, 1.4, 3.0], 0.05
"""The last bucket costs much more than the others."""
PROBE_EVERY = 20
N_SEEDS = full_or(40, 6)


def result_of(bucket: int, loss: float, cosine: float | None = 0.1) -> StepResult:
    sums = LossSums(loss * 7, 7.0, 1, 1, 1, 1)
    return StepResult(0, sums, {bucket: sums}, [bucket], 10, 16, False, 0.1, 1.0, False, False, cosine)


def order_of(seed: int, n: int, runs: bool) -> list[int]:
    """Buckets at random; with `runs`, now and then five steps of the last one, which is rare otherwise."""
    rng = np.random.default_rng(seed)
    order = rng.integers(5, size=n).tolist()
    order = [5 if rng.random() < 0.02 else bucket for bucket in order]
    for start in range(150, n, 100) if runs else ():
        order[start : start + 5] = [5] * 5
    return order


def watched(seed: int, runs: bool, forgets_at: int | None, n: int = 400) -> list[Jump]:
    """A run that learns a little each step and forgets .8 at once, mended within 60 steps."""
    rng = np.random.default_rng([seed, 1])
    dynamics, forgotten = Dynamics(6, seed), 0.0
    for t, bucket in enumerate(order_of(seed, n, runs), start=1):
        forgotten = 0.8 if t == forgets_at else forgotten * 0.97
        level = 0.3 * np.exp(-t / 200) + forgotten
        probe = 1.3 + level + 0.004 * rng.normal()
        dynamics.after_step(t, result_of(bucket, MEANS[bucket] + level + NOISE * rng.normal()))
        if dynamics.to_judge:
            dynamics.judge(t, probe)
        if t % PROBE_EVERY == 0:
            dynamics.probed(t, probe)
    return [Jump(**jump) for jump in dynamics.as_json()["jumps"]]


def test_runs_of_a_bucket_are_composition_and_a_forgetting_is_one_for_every_seed() -> None:
    found, wanted, right = 0, 0, 0
    for seed in range(N_SEEDS):
        calm = watched(seed, runs=False, forgets_at=None)
        runs = watched(seed, runs=True, forgets_at=None)
        lost = watched(seed, runs=True, forgets_at=305)
        assert [jump.kind for jump in calm] in ([], ["composition"]), "a rare bucket thrice running at most"
        kinds = {jump.kind for jump in runs}
        assert kinds == {"composition"} and {jump.bucket for jump in runs} == {5}
        events = [jump for jump in lost if jump.kind in ("forgetting", "both")]
        wanted += 1
        found += len(events)
        right += any(305 <= jump.step <= 310 for jump in events)
    precision, recall = right / max(found, 1), right / wanted
    print(f"forgetting, {N_SEEDS} seeds: precision {precision:.2f} ({right} of {found}), recall {recall:.2f}")
    assert precision >= 0.95 and recall >= 0.95


def test_a_verdict_is_read_off_rise_and_explained_share() -> None:
    verdicts = {
        (4.0, 0.0): "forgetting", (4.0, 0.5): "both", (float("inf"), 0.1): "forgetting", (0.0, -3.0): "composition",
        (1.0, 0.0): "composition", (2.0, 0.6): "composition", (2.0, 0.4): "unresolved", (None, 0.9): "unresolved",
    }  # fmt: skip
    assert {case: kind_of(*case) for case in verdicts} == verdicts


def test_a_rise_is_in_robust_sds_of_the_probe_s_changes() -> None:
    # changes -1, -2, -4, -7: median -3, deviations 2, 1, 1, 4, their median 1.5
    assert rise_of(4.0, [15.0, 14.0, 12.0, 8.0, 1.0]) == pytest.approx(3.0 / (1.4826 * 1.5))
    assert rise_of(2.0, [2.0, 2.0, 2.0, 2.0]) == 0.0 and rise_of(2.1, [2.0, 2.0, 2.0, 2.0]) == float("inf")
    assert rise_of(2.1, [2.0, 2.0, 2.0]) is None and rise_of(1.9, [2.0]) == 0.0
    assert rise_of(None, [2.0] * 9) is None and rise_of(2.0, []) is None


def test_a_value_stands_out_above_four_robust_sds_of_fifty_or_more() -> None:
    history = [0.0, 1.0, 2.0] * 20  # median 1, MAD 1
    assert not stands_out(1 + 4 * 1.4826, history) and stands_out(1.001 + 4 * 1.4826, history)
    assert not stands_out(99.0, history[:49]) and not stands_out(99.0, [1.0] * 60)


def test_a_jump_is_judged_at_its_third_step_and_lasts_while_it_stands_out() -> None:
    dynamics, judged = Dynamics(2, 0), []
    rng = np.random.default_rng(0)
    for t in range(1, 131):
        dynamics.after_step(t, result_of(0, 1 + 0.1 * rng.normal() + (5.0 if 100 <= t < 107 else 0.0)))
        if t % 10 == 0:
            dynamics.probed(t, 2.0)
        if dynamics.to_judge:
            judged.append(t)
            assert dynamics.judge(t, 2.0) == {"dynamics/jump": "composition", "dynamics/jump_probe_loss": 2.0}
    (jump,) = dynamics.as_json()["jumps"]
    assert judged == [102] and (jump["step"], jump["n_steps"], jump["bucket"]) == (100, 7, 0)


def test_a_probe_that_the_damage_had_reached_is_not_what_a_jump_is_held_against_and_its_echo_is_no_second_one() -> None:
    dynamics = Dynamics(1, 0)
    rng = np.random.default_rng(0)
    for t in range(1, 131):  # the update of step 100 does the damage, and the probe of step 100 shows it
        up = 101 <= t < 106 or 109 <= t < 113
        dynamics.after_step(t, result_of(0, 1 + 0.1 * rng.normal() + (5.0 if up else 0.0)))
        if dynamics.to_judge:
            dynamics.judge(t, 3.0)
        if t % 10 == 0:
            dynamics.probed(t, 2.0 if t < 100 else 3.0)
    (jump,) = dynamics.as_json()["jumps"]
    assert (jump["step"], jump["n_steps"], jump["kind"]) == (101, 12, "forgetting")
    assert (jump["probe_before"], jump["probe_after"]) == (2.0, 3.0)


def test_a_run_is_summed_up_in_a_line() -> None:
    jump = Jump(100, 3, "composition", 5, 1.0, 2.0, 2.0, 0.0)
    lost = Jump(200, 4, "forgetting", 1, 0.0, 2.0, 3.0, 9.0)
    assert in_words([jump] * 3, 0.004, [], 9) == (
        "3 jumps, all composition (runs of bucket 5); the probe never rose by more than 0.4 %: no forgetting"
    )
    assert in_words([jump, lost], 0.5, [200], 9) == (
        "2 jumps, 1 composition, 1 forgetting (runs of bucket 5); the probe never rose by more than 50.0 %: "
        "forgetting at step 200"
    )
    assert in_words([], 0.0, [], 9) == "no jump; the probe never rose by more than 0.0 %: no forgetting"
    assert in_words([], 0.13, [220, 240], 9) == (
        "no jump; the probe never rose by more than 13.0 %: no forgetting in a jump, but the probe had risen by over "
        "3 SDs at step 220, 240"
    )
    assert in_words([], 0.0, [], 0) == "no jump; there was no probe: forgetting cannot be told"


def test_what_json_holds_goes_on_bit_for_bit() -> None:
    whole, first = Dynamics(6, 0), Dynamics(6, 0)
    rng = np.random.default_rng(7)
    for t, bucket in enumerate(order_of(0, 300, runs=True), start=1):
        result, probe = result_of(bucket, MEANS[bucket] + NOISE * rng.normal(), float(rng.normal())), rng.normal()
        if t % 37 == 0:
            state = json.loads(json.dumps(first.state()))
            first = Dynamics(6, 0)
            first.load_state(state)
        assert whole.after_step(t, result) == first.after_step(t, result)
        assert whole.to_judge == first.to_judge
        if whole.to_judge:
            assert whole.judge(t, probe) == first.judge(t, probe)
        if t % 20 == 0:
            whole.probed(t, probe)
            first.probed(t, probe)
    assert whole.as_json() == first.as_json() and whole.as_json()["jumps"]

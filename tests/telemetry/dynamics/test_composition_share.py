"""The forecast of a step's loss from its buckets, against a slow oracle; and where a bucket says nothing."""

import json
from statistics import median, pvariance

import numpy as np
import pytest

from dflash_exp.messages import LossSums
from dflash_exp.telemetry.dynamics.composition import KEPT_A_STEP, N_PERMUTED, Forecast

Step = dict[int, LossSums]


def steps_of(n: int, means: list[float], noise: float, seed: int, fall: float = 0.0) -> list[Step]:
    """Steps of two batches; bucket b costs `means[b]`, less what was learned."""
    rng = np.random.default_rng(seed)
    steps: list[Step] = []
    for t in range(n):
        step: Step = {}
        for bucket in rng.integers(len(means), size=2).tolist():
            weight = float(rng.integers(1, 5))
            loss = weight * (means[bucket] - fall * t + noise * rng.normal())
            step[bucket] = step.get(bucket, LossSums(0, 0, 0, 0, 0, 0)) + LossSums(loss, weight, 0, 1, 0, 1)
        steps.append(step)
    return steps


def oracle(steps: list[Step], n_buckets: int) -> tuple[list[float], list[float]]:
    """y and e of the steps with 101 before them, as the head of the module defines them."""
    losses, errors, raw, residual = [], [], [], []
    for t, step in enumerate(steps):
        weight = sum(sums.weight for sums in step.values())
        loss = sum(sums.loss for sums in step.values()) / weight
        past = [(KEPT_A_STEP ** (t - 1 - i), b, sums) for i in range(t) for b, sums in steps[i].items()]
        expected = 0.0
        for bucket, sums in step.items():
            own = [one for one in past if one[1] == bucket] or past
            kept = sum(factor * one.weight for factor, _, one in own)
            mean = sum(factor * one.loss for factor, _, one in own) / kept if own else 0.0
            expected += sums.weight * mean
        error = loss - expected / weight
        if t >= 101:
            raw.append(loss - median(losses[-101:]))
            residual.append(error - median(errors[-101:]))
        losses.append(loss)
        errors.append(error)
    return raw, residual


def test_the_share_is_what_the_definitions_say() -> None:
    steps = steps_of(170, [1.0, 2.0, 4.0], 0.5, seed=0, fall=0.002)
    forecast = Forecast(3, seed=0)
    shown = [forecast.add(t, step) for t, step in enumerate(steps, start=1)]
    raw, residual = oracle(steps, 3)
    assert [p.raw for p in shown[101:] if p] == pytest.approx(raw, rel=1e-9)
    assert [p.residual for p in shown[101:] if p] == pytest.approx(residual, rel=1e-9)
    shares = forecast.shares()
    assert shares is not None and shares[0] == pytest.approx(1 - pvariance(residual) / pvariance(raw), rel=1e-9)
    assert all(part is None for part in shown[:20]) and all(part is not None for part in shown[20:])


def test_buckets_that_differ_are_told_from_buckets_that_do_not() -> None:
    found = {}
    for name, means in {"differ": [1.0, 2.0, 4.0], "alike": [2.0, 2.0, 2.0]}.items():
        forecast = Forecast(3, seed=1)
        for t, step in enumerate(steps_of(600, means, 0.5, seed=5), start=1):
            forecast.add(t, step)
        found[name] = forecast.shares()
    assert found["differ"] is not None and found["alike"] is not None
    assert found["differ"][0] > 0.7 and -0.15 < found["differ"][1] < 0, "labels at random forecast nothing"
    assert -0.1 < found["alike"][0] < 0.05 and -0.1 < found["alike"][1] < 0.02


def test_too_few_steps_or_a_loss_that_stands_still_have_no_share() -> None:
    forecast = Forecast(1, seed=0)
    for t in range(1, 301):
        forecast.add(t, {0: LossSums(2.0, 1.0, 0, 1, 0, 1)})
    assert forecast.shares() is None
    moving = Forecast(3, seed=0)
    for t, step in enumerate(steps_of(150, [1.0, 2.0, 4.0], 0.5, seed=0), start=1):
        assert moving.shares() is None
        moving.add(t, step)
    assert moving.shares() is None and moving.add(151, {0: LossSums(1.0, 1.0, 0, 1, 0, 1)}) and moving.shares()


def test_a_step_without_weight_or_without_a_number_is_passed_over() -> None:
    steps = steps_of(200, [1.0, 3.0], 0.5, seed=2)
    with_odd, without = Forecast(2, seed=0), Forecast(2, seed=0)
    for t, step in enumerate(steps, start=1):
        assert with_odd.add(t, {0: LossSums(0, 0, 0, 0, 0, 0)}) is None
        assert with_odd.add(t, {0: LossSums(float("nan"), 1, 0, 1, 0, 1)}) is None
        assert with_odd.add(t, step) == without.add(t, step)
    assert with_odd.shares() == without.shares()


def test_what_json_holds_goes_on_bit_for_bit() -> None:
    steps = steps_of(220, [1.0, 2.0], 0.5, seed=3)
    whole, first = Forecast(2, seed=4), Forecast(2, seed=4)
    for t, step in enumerate(steps, start=1):
        expected = whole.add(t, step)
        if t % 50 == 0:
            state = json.loads(json.dumps(first.state()))
            first = Forecast(2, seed=4)
            first.load_state(state)
        assert first.add(t, step) == expected
    assert first.shares() == whole.shares() and N_PERMUTED == 16

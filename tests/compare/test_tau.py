"""The interval of decoded τ knows that other prompts would give another τ."""

import numpy as np
import pytest

from dflash_exp.compare.runs import Run
from dflash_exp.compare.tau import decoded_tau, resampled_ratio


def run_of(emitted: list[int], steps: list[int]) -> Run:
    rows = [{"emitted": e, "verify_steps": s} for e, s in zip(emitted, steps, strict=True)]
    return Run("run", (), {}, "finished", None, {}, (), {}, {"per_prompt": rows}, {}, {})


def test_tau_is_pooled_over_prompts_and_seeds() -> None:
    found = decoded_tau([run_of([10, 30], [10, 10]), run_of([20, 20], [10, 20])])
    assert found is not None and found[0] == pytest.approx(80 / 50)
    assert found[1] < found[0] < found[2]


def test_where_all_prompts_and_seeds_are_alike_there_is_no_spread() -> None:
    assert decoded_tau([run_of([20, 20], [10, 10])] * 3) == (2.0, 2.0, 2.0)


def test_prompts_that_differ_make_an_interval_though_all_seeds_agree() -> None:
    """Its width is that of a mean over prompts: 1.96 standard errors either way."""
    rng = np.random.default_rng(0)
    emitted = rng.integers(100, 300, size=64)
    found = decoded_tau([run_of(emitted.tolist(), [100] * 64)] * 4)
    assert found is not None
    assert found[2] - found[1] == pytest.approx(2 * 1.96 * (emitted / 100).std() / 8, rel=0.08)


def test_seeds_that_differ_make_an_interval_though_all_prompts_agree() -> None:
    taus = np.linspace(1, 3, 30)
    drawn = resampled_ratio(np.repeat(taus[:, None], 5, axis=1), np.ones((30, 5)), np.random.default_rng(0))
    assert drawn.std() == pytest.approx(taus.std() / np.sqrt(30), rel=0.08)


def test_runs_decoded_on_other_prompts_or_not_at_all_have_none() -> None:
    assert decoded_tau([]) is None and decoded_tau([run_of([1], [1]), run_of([1, 1], [1, 1])]) is None
    assert decoded_tau([run_of([0], [0])]) is None

"""Differences between arms, their intervals and verdicts: by hand, and against scipy's own tests."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dflash_exp.compare import statistics
from dflash_exp.compare.statistics import against_baseline, paired, verdicts

VALUES = np.array([[2.0, 2.5, 1.9], [3.0, 3.1, 2.7], [4.0, 4.9, 4.1], [2.2, 2.9, 2.3]])
"""Four seeds, three arms."""


def test_the_paired_test_is_that_of_scipy() -> None:
    tested = paired(VALUES[:, 1] - VALUES[:, 0], 0.9)
    oracle: Any = stats.ttest_rel(VALUES[:, 1], VALUES[:, 0])
    assert tested.difference == pytest.approx(0.55) and tested.p == pytest.approx(oracle.pvalue)
    interval = oracle.confidence_interval(0.95)
    assert (tested.low, tested.high) == pytest.approx((interval.low, interval.high))
    one_sided: Any = stats.ttest_1samp(VALUES[:, 1] - VALUES[:, 0], 0.9, alternative="less")
    assert tested.p_far == pytest.approx(one_sided.pvalue)


def test_the_residual_variance_is_that_of_least_squares_on_arm_and_seed() -> None:
    n_seeds, n_arms = VALUES.shape
    seed, arm = np.repeat(np.eye(n_seeds), n_arms, axis=0), np.tile(np.eye(n_arms), (n_seeds, 1))
    design = np.hstack([seed, arm])
    fitted = design @ np.linalg.lstsq(design, VALUES.ravel())[0]
    expected = ((VALUES.ravel() - fitted) ** 2).sum() / (n_seeds * n_arms - n_seeds - n_arms + 1)
    assert statistics.residual_variance(VALUES) == pytest.approx(expected)


def test_a_seed_that_moves_all_arms_alike_moves_no_comparison() -> None:
    moved = VALUES + np.array([[100.0], [-7.0], [0.0], [3.0]])
    for name in ("difference", "low", "high", "p", "p_far"):
        one, other = (vars(against_baseline(values, 0.1))[name] for values in (VALUES, moved))
        np.testing.assert_allclose(one, other)


def test_of_two_arms_the_simultaneous_interval_is_the_paired_one() -> None:
    joint, alone = against_baseline(VALUES[:, :2], 0.2), paired(VALUES[:, 1] - VALUES[:, 0], 0.2)
    for name in ("difference", "low", "high", "p", "p_far"):
        assert float(vars(joint)[name][0]) == pytest.approx(float(vars(alone)[name]), abs=1e-6)


def test_simultaneous_intervals_are_wider_than_single_ones_and_hold_zero_where_p_is_over_5_percent() -> None:
    rng = np.random.default_rng(1)
    tested = against_baseline(rng.normal(size=(300, 4, 4)), np.zeros(300))
    dunnett = tested.adjustment == "dunnett"
    assert dunnett.mean() > 0.9
    np.testing.assert_array_equal(((tested.low > 0) | (tested.high < 0))[dunnett], (tested.p < 0.05)[dunnett])


def test_variances_are_held_against_one_another_by_bartletts_test() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(50, 6, 4)) * np.array([1, 1, 1, 4])
    oracle = [stats.bartlett(*residual.T).pvalue < 0.05 for residual in statistics.residuals(values)]
    found = statistics.variances_differ(values)
    assert 0 < found.sum() < 50
    np.testing.assert_array_equal(found, oracle)
    assert not statistics.variances_differ(values[:, :, [0, 3]]).any()


def test_where_variances_differ_each_arm_is_tested_by_its_own_differences() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(12, 3)) * np.array([1, 1, 30])
    tested = against_baseline(values, 0.1)
    oracles: list[Any] = [stats.ttest_rel(values[:, k], values[:, 0]) for k in (1, 2)]
    assert tested.adjustment.tolist() == ["holm", "holm"]
    np.testing.assert_allclose(tested.p, statistics.holm(np.array([oracle.pvalue for oracle in oracles])))
    single = paired(values[:, 1] - values[:, 0], 0.1)
    assert tested.high[0] - tested.low[0] > single.high - single.low


def test_holms_correction_by_hand() -> None:
    np.testing.assert_allclose(statistics.holm(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(statistics.holm(np.array([[0.9, 0.5], [0.02, 0.001]])), [[1.0, 1.0], [0.02, 0.002]])


@pytest.mark.parametrize(
    ("differences", "lower", "expected"),
    [
        ([-0.50, -0.52, -0.49], True, "better"),
        ([-0.50, -0.52, -0.49], False, "worse"),
        ([0.02, -0.02, 0.01], True, "equivalent"),
        ([0.021, 0.020, 0.022], True, "equivalent"),  # surely not 0, and within what counts as equal
        ([0.9, -0.8, 0.1], True, "undecided"),
        ([0.0, 0.0, 0.0], True, "equivalent"),
        ([0.3, 0.3, 0.3], True, "worse"),
    ],
)
def test_a_verdict_follows_from_interval_and_margin(differences: list[float], lower: bool, expected: str) -> None:
    assert verdicts(paired(np.array(differences), 0.1), lower).tolist() == expected


@pytest.mark.parametrize(("effect", "n"), [(1.0, 10), (0.5, 34), (0.2, 199), (0.1, 787)])
def test_seeds_for_80_percent_power_are_those_of_the_tables(effect: float, n: int) -> None:
    assert statistics.seeds_for(1.0, effect) == n
    assert statistics.detectable(2.0, n) == pytest.approx(2 * effect, rel=0.02)


def test_few_seeds_hardly_say_how_many_are_needed() -> None:
    low, high = statistics.seeds_for_interval(1.0, 3, 1.0)
    assert low is not None and high is not None and low < 10 < 200 < high
    assert statistics.seeds_for(1.0, 1e-9) is None and statistics.seeds_for(0.0, 0.1) == 3


def test_of_all_swaps_of_labels_those_as_large_are_counted() -> None:
    assert statistics.share_as_large(np.array([1.0, 1.0, 1.0])) == (0.25, 8)
    assert statistics.share_as_large(np.array([3.0, -2.0, 1.0])) == (0.75, 8)  # sums 2, 6, 0, 4 and their negatives
    share, n = statistics.share_as_large(np.random.default_rng(0).normal(size=20))
    assert n == 4096 and 0 < share <= 1

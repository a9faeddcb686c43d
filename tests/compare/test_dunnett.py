"""The largest of several t statistics against one baseline: published bounds, and scipy's one-way test."""

import numpy as np
import pytest
from scipy import stats

from dflash_exp.compare.dunnett import critical_value, joint_probability, p_value

TWO_SIDED = {(2, 5): 3.03, (3, 5): 3.29, (5, 5): 3.62, (2, 10): 2.57, (3, 10): 2.76, (9, 10): 3.24, (3, 20): 2.54}
"""Dunnett (1964), 5 %: contrasts, degrees of freedom."""
ONE_SIDED = {(2, 10): 2.15, (3, 10): 2.34, (5, 10): 2.56, (3, 20): 2.19}
"""Dunnett (1955), 5 %."""


@pytest.mark.parametrize(("sides", "table"), [(2, TWO_SIDED), (1, ONE_SIDED)])
def test_the_bounds_are_the_published_ones(sides: int, table: dict[tuple[int, int], float]) -> None:
    for (n_contrasts, df), bound in table.items():
        assert critical_value(0.05, n_contrasts, df, sides) == pytest.approx(bound, abs=0.0051)


@pytest.mark.parametrize("df", [1, 2, 10, 300, np.inf])
def test_of_one_contrast_it_is_the_t_distribution(df: float) -> None:
    t = np.array([0.0, 0.7, 3.0, 9.0])
    np.testing.assert_allclose(p_value(t, 1, df, 2), 2 * stats.t.sf(t, df), atol=1e-7)
    np.testing.assert_allclose(p_value(-t, 1, df, 1), stats.t.sf(-t, df), atol=1e-7)


def test_p_is_that_of_scipy_for_a_one_way_design() -> None:
    rng = np.random.default_rng(0)
    samples = [rng.normal(shift, 1, size=6) for shift in (0.0, 0.4, 1.2, -0.9)]
    pooled = np.sqrt(np.mean([np.var(sample, ddof=1) for sample in samples]) * 2 / 6)
    for two_sided, sides in ((True, 2), (False, 1)):
        side = "two-sided" if two_sided else "greater"
        oracle = stats.dunnett(*samples[1:], control=samples[0], alternative=side, rng=np.random.default_rng(1))
        t = np.array([(sample.mean() - samples[0].mean()) / pooled for sample in samples[1:]])
        np.testing.assert_allclose(p_value(t, 3, 20, sides), oracle.pvalue, atol=2e-3)


def test_many_bounds_at_once_are_the_bounds_one_by_one() -> None:
    bounds = np.linspace(0, 4, 2400).reshape(2, 1200)
    whole = joint_probability(bounds, 3, 8, 2)
    assert whole.shape == (2, 1200) and (np.diff(whole, axis=1) > 0).all()
    assert whole[1, 77] == pytest.approx(float(joint_probability(bounds[1, 77], 3, 8, 2)), abs=1e-12)

"""Several settings held against one baseline at once: the distribution of the largest of their t statistics.

In: a bound, how many settings, degrees of freedom. Out: probabilities, and the bound that goes with one. With as many
seeds in every arm, any two differences from the baseline are correlated by 1/2, since they share it; so the joint
probability is a double integral, over the baseline's own error and over the error of the pooled standard deviation
(Dunnett 1955). Gauss-Legendre on both gives the published tables and agrees with scipy's one-way Dunnett to 1e-3,
which is that one's own sampling error.
"""

# M contrasts, S standard deviations, Z baselines

import numpy as np
from scipy import special, stats
from scipy.optimize import brentq

N_SPREADS, N_BASELINES = 64, 96
REACH = 9.0
"""Standard deviations of the baseline that are integrated over."""
AT_ONCE = 1000
"""Bounds that are integrated at once: about 50 MB."""


def joint_probability(bound: np.ndarray | float, n_contrasts: int, df: float, sides: int) -> np.ndarray:
    """That none of the contrasts' t is above the bound (`sides` 1) or beyond it either way (2); of any shape."""
    bounds = np.atleast_1d(np.asarray(bound, dtype=np.float64))
    found = [_joint(part, n_contrasts, df, sides) for part in np.array_split(bounds.ravel(), _parts(bounds.size))]
    return np.concatenate(found).reshape(np.shape(bound))


def p_value(t: np.ndarray | float, n_contrasts: int, df: float, sides: int) -> np.ndarray:
    """The chance of a t as large among all contrasts where nothing differs; two-sided where `sides` is 2."""
    return 1 - joint_probability(np.abs(t) if sides == 2 else t, n_contrasts, df, sides)


def critical_value(alpha: float, n_contrasts: int, df: float, sides: int) -> float:
    """The bound that the largest t passes with probability alpha where nothing differs."""
    bound = brentq(lambda c: float(p_value(c, n_contrasts, df, sides)) - alpha, 0.0, 500.0, xtol=1e-8)
    assert isinstance(bound, float)
    return bound


def _joint(bound: np.ndarray, n_contrasts: int, df: float, sides: int) -> np.ndarray:
    spread_S, weight_S = _spreads(df)
    nodes, weights = np.polynomial.legendre.leggauss(N_BASELINES)
    baseline_Z, weight_Z = REACH * nodes, REACH * weights * stats.norm.pdf(REACH * nodes)
    reach = np.sqrt(2) * bound[:, None, None] * spread_S[:, None]
    below = special.ndtr(baseline_Z + reach)
    if sides == 2:
        below -= special.ndtr(baseline_Z - reach)
    return np.clip((below**n_contrasts @ weight_Z) @ weight_S, 0.0, 1.0)


def _spreads(df: float) -> tuple[np.ndarray, np.ndarray]:
    """Estimated over true standard deviation, and the weight of each: [S] both."""
    if np.isinf(df):
        return np.ones(1), np.ones(1)
    nodes, weights = np.polynomial.legendre.leggauss(N_SPREADS)
    low, high = stats.chi.ppf((1e-12, 1 - 1e-12), df) / np.sqrt(df)
    spread = (high - low) / 2 * nodes + (high + low) / 2
    return spread, (high - low) / 2 * weights * stats.chi.pdf(spread * np.sqrt(df), df) * np.sqrt(df)


def _parts(n: int) -> int:
    return max(1, -(-n // AT_ONCE))

"""Seeds are blocks, settings are treatments: differences, their intervals, and what may be said of them.

In: one figure of every run, [seeds, arms], the baseline first; any number of sweeps in front. Out: `Tested`. One
question asked beforehand gets a paired t (`paired`); all settings at once get simultaneous intervals
(`against_baseline`): Dunnett's on the model arm + seed, or, where the arms' residual variances differ (Bartlett,
5 %), paired t of each with Holm's correction and Bonferroni's intervals. `python -m tests.compare.simulation` says how
often each of them errs.
"""

# N seeds, K arms, M = K - 1 contrasts; ... sweeps

from dataclasses import dataclass

import numpy as np
from scipy import stats

from dflash_exp.compare import dunnett

ALPHA = 0.05
"""Of every test; intervals hold with probability 1 - ALPHA."""
POWER = 0.8
FEWEST_SEEDS = 3
"""Below, no p is given: two differences say nothing of their spread."""
MOST_SEEDS = 1_000_000
FLIPPED_ALL = 12
"""Up to so many seeds every swap of labels is tried, else RANDOM_FLIPS of them."""
RANDOM_FLIPS = 4096


@dataclass(frozen=True, eq=False)
class Tested:
    """Differences from the baseline and what the tests say, arrays of one shape."""

    difference: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """The interval."""
    p: np.ndarray
    """Of no difference."""
    p_far: np.ndarray
    """Of a difference as large as the margin or larger: the greater of two one-sided tests."""
    adjustment: np.ndarray
    """none, dunnett or holm."""


def paired(difference_N: np.ndarray, margin: np.ndarray | float) -> Tested:
    """Paired t of differences by seed [..., N], N >= 2; the margin is in the metric's unit, [...]."""
    mean, se, df = _mean_and_error(difference_N)
    half = stats.t.ppf(1 - ALPHA / 2, df) * se
    p, p_far = _paired_p(mean, se, df, margin)
    return Tested(mean, mean - half, mean + half, p, p_far, np.full(np.shape(mean), "none"))


def against_baseline(value_NK: np.ndarray, margin: np.ndarray | float) -> Tested:
    """All arms against the first: values [..., N, K] without a gap, N >= 2; margins [...]. Out: [..., M]."""
    by_dunnett, by_holm = _dunnett(value_NK, margin), _holm(value_NK, margin)
    switch = np.broadcast_to(variances_differ(value_NK)[..., None], by_holm.p.shape)
    names = Tested.__dataclass_fields__
    return Tested(*(np.where(switch, vars(by_holm)[name], vars(by_dunnett)[name]) for name in names))


def residuals(value_NK: np.ndarray) -> np.ndarray:
    """What the model arm + seed leaves of the values, [..., N, K]."""
    by_seed, by_arm = value_NK.mean(axis=-1, keepdims=True), value_NK.mean(axis=-2, keepdims=True)
    return value_NK - by_seed - by_arm + value_NK.mean(axis=(-2, -1), keepdims=True)


def residual_variance(value_NK: np.ndarray) -> np.ndarray:
    """Of a single run, over and above its arm and its seed: [...]."""
    n_seeds, n_arms = value_NK.shape[-2:]
    return (residuals(value_NK) ** 2).sum(axis=(-2, -1)) / ((n_seeds - 1) * (n_arms - 1))


def variances_differ(value_NK: np.ndarray) -> np.ndarray:
    """Whether Bartlett's test at 5 % says so of the arms' residuals; never for two arms, whose are the same."""
    n_seeds, n_arms = value_NK.shape[-2:]
    if n_arms == 2:
        return np.zeros(value_NK.shape[:-2], dtype=bool)
    each, df = (residuals(value_NK) ** 2).sum(axis=-2) / (n_seeds - 1), n_seeds - 1
    tiny = np.finfo(np.float64).tiny
    ratio = np.log(np.maximum(each.mean(axis=-1), tiny)) * n_arms - np.log(np.maximum(each, tiny)).sum(axis=-1)
    scale = 1 + (n_arms - 1 / n_arms) / (3 * (n_arms - 1) * df)
    return stats.chi2.sf(df * ratio / scale, n_arms - 1) < ALPHA


def _dunnett(value_NK: np.ndarray, margin: np.ndarray | float) -> Tested:
    n_seeds, n_arms = value_NK.shape[-2:]
    n_contrasts, df = n_arms - 1, (n_seeds - 1) * (n_arms - 1)
    difference = (value_NK[..., 1:] - value_NK[..., :1]).mean(axis=-2)
    se = np.sqrt(2 * residual_variance(value_NK) / n_seeds)[..., None] * np.ones(n_contrasts)
    half = dunnett.critical_value(ALPHA, n_contrasts, df, sides=2) * se
    t, t_far = _ts(difference, se, np.asarray(margin)[..., None])
    p, p_far = dunnett.p_value(t, n_contrasts, df, sides=2), dunnett.p_value(t_far, n_contrasts, df, sides=1)
    return Tested(difference, difference - half, difference + half, p, p_far, np.full(difference.shape, "dunnett"))


def _holm(value_NK: np.ndarray, margin: np.ndarray | float) -> Tested:
    difference_MN = np.moveaxis(value_NK[..., 1:] - value_NK[..., :1], -1, -2)
    mean, se, df = _mean_and_error(difference_MN)
    half = stats.t.ppf(1 - ALPHA / 2 / mean.shape[-1], df) * se
    p, p_far = (holm(each) for each in _paired_p(mean, se, df, np.asarray(margin)[..., None]))
    return Tested(mean, mean - half, mean + half, p, p_far, np.full(mean.shape, "holm"))


def holm(p_M: np.ndarray) -> np.ndarray:
    """Holm's adjusted p, [..., M]: the smallest times M, the next times M - 1, never less than one before."""
    order = np.argsort(p_M, axis=-1)
    factors = np.arange(p_M.shape[-1], 0, -1)
    grown = np.maximum.accumulate(np.take_along_axis(p_M, order, axis=-1) * factors, axis=-1)
    adjusted = np.empty_like(grown)
    np.put_along_axis(adjusted, order, np.minimum(grown, 1.0), axis=-1)
    return adjusted


def _mean_and_error(difference_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    n_seeds = difference_N.shape[-1]
    return difference_N.mean(axis=-1), difference_N.std(axis=-1, ddof=1) / np.sqrt(n_seeds), n_seeds - 1


def _paired_p(mean: np.ndarray, se: np.ndarray, df: int, margin: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    t, t_far = _ts(mean, se, margin)
    return 2 * stats.t.sf(np.abs(t), df), stats.t.sf(t_far, df)


def _ts(difference: np.ndarray, se: np.ndarray, margin: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """t of no difference, and the smaller t of the two one-sided tests. Without any spread they are 0 or infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(difference == 0, 0.0, difference / se)
        room = margin - np.abs(difference)
        return t, np.where(room == 0, 0.0, room / se)


def verdicts(tested: Tested, lower_is_better: bool) -> np.ndarray:
    """better, worse, equivalent or undecided, of each difference.

    What lies within the margin is equivalent, also where it is surely not 0: the margin says what counts as equal.
    """
    better = (tested.difference < 0) == lower_is_better
    differs = np.where(better, "better", "worse")
    return np.where(tested.p_far <= ALPHA, "equivalent", np.where(tested.p <= ALPHA, differs, "undecided"))


def seeds_for(sd: float, margin: float) -> int | None:
    """The fewest seeds at which a paired t finds a difference of the margin with 80 % power; None above 1,000,000."""
    if sd == 0:
        return FEWEST_SEEDS
    low, high = FEWEST_SEEDS, FEWEST_SEEDS
    while _power(high, margin / sd) < POWER:
        low, high = high + 1, 2 * high
        if high > MOST_SEEDS:
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, margin / sd) >= POWER else (middle + 1, high)
    return low


def seeds_for_interval(sd: float, n_seeds: int, margin: float) -> tuple[int | None, int | None]:
    """`seeds_for` at the ends of the 95 % interval of a standard deviation found from so many differences."""
    df = n_seeds - 1
    low, high = (sd * np.sqrt(df / stats.chi2.ppf(q, df)) for q in (1 - ALPHA / 2, ALPHA / 2))
    return seeds_for(float(low), margin), seeds_for(float(high), margin)


def detectable(sd: float, n_seeds: int) -> float:
    """The smallest difference that so many seeds find with 80 % power."""
    low, high = 0.0, 1.0
    while _power(n_seeds, high) < POWER:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _power(n_seeds, middle) >= POWER else (middle, high)
    return high * sd


def _power(n_seeds: int, effect: float) -> float:
    """Of a two-sided paired t; the effect is in standard deviations of the differences."""
    shift, critical = effect * np.sqrt(n_seeds), stats.t.ppf(1 - ALPHA / 2, n_seeds - 1)
    if n_seeds > 1000:  # where scipy's noncentral t is slow, and a normal distribution by now
        return float(stats.norm.sf(critical - shift) + stats.norm.cdf(-critical - shift))
    return float(stats.nct.sf(critical, n_seeds - 1, shift) + stats.nct.cdf(-critical, n_seeds - 1, shift))


def share_as_large(difference_N: np.ndarray) -> tuple[float, int]:
    """Swap the two labels within seeds: the share of all swaps whose mean difference is as large, and how many.

    Every swap up to 12 seeds, else 4096 drawn ones. It assumes nothing of how the figures are distributed; of n seeds
    its smallest value is 2 / 2^n.
    """
    n_seeds = len(difference_N)
    if n_seeds <= FLIPPED_ALL:
        flips = 1 - 2 * (np.arange(2**n_seeds)[:, None] >> np.arange(n_seeds) & 1)
    else:
        flips = np.random.default_rng(0).choice((-1, 1), size=(RANDOM_FLIPS, n_seeds))
    means = np.abs(flips @ difference_N)
    return float((means >= np.abs(difference_N.sum()) * (1 - 1e-12)).mean()), len(flips)

"""Decoded τ and its interval, prompts and seeds both drawn anew.

In: of every run of an arm, what each prompt emitted in how many verify steps. Out: τ pooled and the ends of its 95 %
interval (two-way bootstrap, percentiles of 2,000 draws). Prompts are the larger source of spread, and all runs share
them; an interval over seeds alone would not say how τ would be on other prompts.
"""

# R runs, P prompts, D draws

from collections.abc import Sequence

import numpy as np

from dflash_exp.compare.runs import Run

N_DRAWS = 2000


def decoded_tau(runs: Sequence[Run]) -> tuple[float, float, float] | None:
    """τ, low, high over the runs that were decoded on the same prompts; None where none was, or on other ones."""
    rows = [run.evaluation["per_prompt"] for run in runs if run.evaluation.get("per_prompt")]
    if not rows or len({len(own) for own in rows}) > 1:
        return None
    emitted_RP = np.array([[row["emitted"] for row in own] for own in rows], dtype=np.float64)
    steps_RP = np.array([[row["verify_steps"] for row in own] for own in rows], dtype=np.float64)
    if steps_RP.sum() == 0:
        return None
    drawn = resampled_ratio(emitted_RP, steps_RP, np.random.default_rng(0))
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(emitted_RP.sum() / steps_RP.sum()), float(low), float(high)


def resampled_ratio(over_RP: np.ndarray, under_RP: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The ratio of the two sums over runs and prompts drawn with replacement, each on its own: float64 [D]."""
    n_runs, n_prompts = over_RP.shape
    times_DR = rng.multinomial(n_runs, np.full(n_runs, 1 / n_runs), size=N_DRAWS)
    times_DP = rng.multinomial(n_prompts, np.full(n_prompts, 1 / n_prompts), size=N_DRAWS)
    over, under = (((times_DR @ held) * times_DP).sum(axis=1) for held in (over_RP, under_RP))
    return np.divide(over, under, out=np.full(N_DRAWS, np.nan), where=under > 0)[under > 0]

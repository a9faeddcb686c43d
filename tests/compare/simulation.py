"""How often the comparison errs, over simulated sweeps: `python -m tests.compare.simulation` prints a table.

A sweep has four arms (three contrasts), n seeds, an effect of the seed of five times a run's own standard deviation,
and a baseline at 100. Cases: normal errors; Student's t with 3 degrees of freedom; one arm with three times the
standard deviation; one run of one arm that diverged, by 20 standard deviations. The margin is 1 % of the baseline, one
standard deviation of a run.
"""

from dataclasses import dataclass

import numpy as np

from dflash_exp.compare.statistics import ALPHA, against_baseline, paired

CASES = ("normal", "t3", "unequal variances", "one diverging seed")
N_ARMS, BASELINE, SEED_SD, MARGIN = 4, 100.0, 5.0, 0.01
N_SWEEPS, N_SEEDS = 2000, (3, 5, 10, 20)


@dataclass(frozen=True)
class Errors:
    """Shares of simulated sweeps."""

    covered: float
    """The interval of the primary contrast holds the true difference."""
    family_wise: float
    """Some arm differs, says the test of all arms, where none does."""
    by_holm: float
    """Sweeps whose arms were tested one by one, their variances being found to differ."""
    falsely_equal: float
    """Primary contrast: equivalent, where the difference is as large as the margin."""
    falsely_equal_family: float
    """Some arm is equivalent where all differ by the margin."""


def simulated(case: str, n_seeds: int, n_sweeps: int, shift: float, rng: np.random.Generator) -> np.ndarray:
    """Figures of the runs, [sweeps, seeds, arms]; all arms but the baseline are off by the shift."""
    shape = (n_sweeps, n_seeds, N_ARMS)
    error = rng.standard_t(3, size=shape) if case == "t3" else rng.normal(size=shape)
    if case == "unequal variances":
        error[:, :, 1] *= 3
    if case == "one diverging seed":
        error[:, 0, 1] += 20
    return BASELINE + SEED_SD * rng.normal(size=(n_sweeps, n_seeds, 1)) + error + shift * (np.arange(N_ARMS) > 0)


def errors(case: str, n_seeds: int, n_sweeps: int, seed: int) -> Errors:
    """The margin is taken off the baseline's mean as found, as a comparison does."""
    rng = np.random.default_rng(seed)
    same, apart = (simulated(case, n_seeds, n_sweeps, shift, rng) for shift in (0.0, MARGIN * BASELINE))
    alone = paired(same[:, :, 1] - same[:, :, 0], MARGIN * same[:, :, 0].mean(axis=1))
    family = against_baseline(same, MARGIN * same[:, :, 0].mean(axis=1))
    margin = MARGIN * apart[:, :, 0].mean(axis=1)
    return Errors(
        covered=float(((alone.low <= 0) & (alone.high >= 0)).mean()),
        family_wise=float((family.p <= ALPHA).any(axis=1).mean()),
        by_holm=float((family.adjustment[:, 0] == "holm").mean()),
        falsely_equal=float((paired(apart[:, :, 1] - apart[:, :, 0], margin).p_far <= ALPHA).mean()),
        falsely_equal_family=float((against_baseline(apart, margin).p_far <= ALPHA).any(axis=1).mean()),
    )


def main() -> None:
    print(f"{N_SWEEPS} sweeps a row; percent")
    headings = ("case", "seeds", "covered", "family-wise", "by Holm", "falsely equal", "of any arm")
    print(("{:<20}{:>6}" + 5 * "{:>15}").format(*headings))
    for case in CASES:
        for n_seeds in N_SEEDS:
            shares = vars(errors(case, n_seeds, N_SWEEPS, seed=n_seeds)).values()
            print(f"{case:<20}{n_seeds:>6}" + "".join(f"{100 * share:>15.1f}" for share in shares), flush=True)


if __name__ == "__main__":
    main()

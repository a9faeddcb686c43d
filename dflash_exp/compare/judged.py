"""Arms and a question -> contrasts with verdicts: what compare.json says.

Seeds are blocks: only runs of one seed are held against one another, and only finished ones. The primary contrast is
the one frozen with the sweep; every arm against the baseline comes second, jointly. Until the planned number of seeds
is there it is an interim look, with intervals and no verdict; with fewer than three seeds there is no p.
"""

# N seeds (blocks), K arms

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from dflash_exp.compare import statistics
from dflash_exp.compare.arms import Arm, Block, find_arm
from dflash_exp.compare.measures import Measure, measure, tokens_to
from dflash_exp.compare.runs import Run
from dflash_exp.compare.statistics import ALPHA, FEWEST_SEEDS, Tested


@dataclass(frozen=True)
class Question:
    """What is asked of the runs."""

    metric: str
    baseline: str | None
    """None: arms are described."""
    contrast: str | None
    """None: no contrast was chosen beforehand."""
    margin: float
    """Share of the baseline."""
    seeds: int
    differs_in: str
    """order or setting."""
    exploratory: bool
    """Asked after the runs were there."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """Arm a less arm b, by seed."""

    a: str
    b: str
    metric: str
    adjustment: str
    by_seed: np.ndarray
    """float64 [N], the seeds that both have."""
    margin: float
    """In the metric's unit."""
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    p_far: float | None
    verdict: str | None
    """None: an interim look."""
    n_for_margin: dict[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        """An entry of `contrasts` in compare.json."""
        names = ("a", "b", "metric", "difference", "interval", "p", "adjustment", "verdict", "n_for_margin")
        return {name: vars(self)[name] for name in names}


@dataclass(frozen=True)
class ArmFigure:
    """One measure of one arm."""

    n: int
    mean: float | None
    sd: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class Values:
    """One measure of all runs: float64 [N, K], NaN where a run has none or has not finished."""

    measure: Measure
    value_NK: np.ndarray
    arms: Sequence[Arm]

    def of(self, arm: Arm) -> np.ndarray:
        """float64 [N]."""
        return self.value_NK[:, [each is arm for each in self.arms].index(True)]

    def figure(self, arm: Arm) -> ArmFigure:
        """Mean, standard deviation over the seeds, and the mean's 95 % interval."""
        column = self.of(arm)
        known = column[np.isfinite(column)]
        n = len(known)
        if n < 2:
            return ArmFigure(n, float(known[0]) if n else None, None, None)
        mean, sd = float(known.mean()), float(known.std(ddof=1))
        half = float(stats.t.ppf(1 - ALPHA / 2, n - 1)) * sd / n**0.5
        return ArmFigure(n, mean, sd, (mean - half, mean + half))


def blocks_of(arms: Sequence[Arm]) -> list[Block]:
    """All seeds of all arms, ascending."""
    return sorted({block for arm in arms for block in arm.runs})


def values_of(arms: Sequence[Arm], wanted: Measure) -> Values:
    """A measure of every finished run."""
    return Values(wanted, _matrix(arms, lambda run, block: wanted.of(run)), arms)


def tokens_to_baseline(arms: Sequence[Arm], baseline: Arm) -> Values:
    """Tokens until a run's probe loss is what the baseline's of the same seed was at its end; NaN: not reached."""

    def read(run: Run, block: Block) -> float | None:
        other = baseline.runs.get(block)
        level = other.last("probe/loss") if other is not None and other.finished else None
        return None if level is None else tokens_to(run, level)

    kind = Measure("tokens_to_baseline", "tokens to the baseline's probe loss", True, 0, lambda run: None)
    return Values(kind, _matrix(arms, read), arms)


def _matrix(arms: Sequence[Arm], read: Callable[[Run, Block], float | None]) -> np.ndarray:
    blocks = blocks_of(arms)
    matrix = np.full((len(blocks), len(arms)), np.nan)
    for row, block in enumerate(blocks):
        for column, arm in enumerate(arms):
            run = arm.runs.get(block)
            value = read(run, block) if run is not None and run.finished else None
            matrix[row, column] = np.nan if value is None else value
    return matrix


def primary(values: Values, question: Question, arms: Sequence[Arm]) -> Contrast | None:
    """The contrast that was chosen beforehand; None where there is none, or no seed that both arms have."""
    if question.contrast is None or question.baseline is None:
        return None
    b, a = (find_arm(arms, name, "the contrast of the sweep") for name in (question.baseline, question.contrast))
    pair = np.stack((values.of(b), values.of(a)), axis=1)
    pair = pair[np.isfinite(pair).all(axis=1)]
    if len(pair) == 0:
        return None
    margin = question.margin * abs(float(pair[:, 0].mean()))
    tested = statistics.paired(pair[:, 1] - pair[:, 0], margin) if len(pair) > 1 else None
    return _contrast(values.measure, (a, b), pair, margin, tested, question, len(pair) >= question.seeds)


def family(values: Values, question: Question, baseline: Arm) -> list[Contrast]:
    """Every arm against the baseline, jointly, over the seeds that all of them have."""
    others = [arm for arm in values.arms if arm is not baseline and np.isfinite(values.of(arm)).any()]
    columns = np.stack([values.of(arm) for arm in (baseline, *others)], axis=1)
    whole = columns[np.isfinite(columns).all(axis=1)]
    if len(whole) == 0 or not others:
        return []
    margin = question.margin * abs(float(whole[:, 0].mean()))
    tested = statistics.against_baseline(whole, margin) if len(whole) > 1 else None
    enough = len(whole) >= question.seeds
    return [
        _contrast(
            values.measure, (arm, baseline), whole[:, [0, k]], margin, None if tested is None else _nth(tested, k - 1),
            question, enough,
        )
        for k, arm in enumerate(others, start=1)
    ]  # fmt: skip


def _nth(tested: Tested, k: int) -> Tested:
    return Tested(*(value[k] for value in vars(tested).values()))


def _contrast(
    kind: Measure, pair: tuple[Arm, Arm], values: np.ndarray, margin: float, tested: Tested | None,
    question: Question, enough: bool,
) -> Contrast:  # fmt: skip
    """The baseline's values are the first column of `values` [N, 2]."""
    by_seed = values[:, 1] - values[:, 0]
    counts = tested is not None and len(by_seed) >= FEWEST_SEEDS
    verdict = str(statistics.verdicts(tested, kind.lower_is_better)) if counts and tested is not None else "undecided"
    return Contrast(
        a=pair[0].label,
        b=pair[1].label,
        metric=kind.name,
        adjustment="none" if tested is None else str(tested.adjustment),
        by_seed=by_seed,
        margin=margin,
        difference=float(by_seed.mean()),
        interval=None if tested is None else (float(tested.low), float(tested.high)),
        p=float(tested.p) if counts and tested is not None else None,
        p_far=float(tested.p_far) if counts and tested is not None else None,
        verdict=verdict if enough else None,
        n_for_margin=_seeds_needed(by_seed, margin, question.margin),
    )


def _seeds_needed(by_seed: np.ndarray, margin: float, share: float) -> dict[str, Any] | None:
    """Seeds at which a difference of the margin is found with 80 % power, with the interval that the spread allows."""
    if len(by_seed) < 2 or margin == 0:
        return None
    sd = float(by_seed.std(ddof=1))
    low, high = statistics.seeds_for_interval(sd, len(by_seed), margin)
    return {"n": statistics.seeds_for(sd, margin), "interval": [low, high], "margin": share}


def noise_floor(values: Values) -> dict[str, Any] | None:
    """How far apart two runs of one setting are: beyond their seed where arms share seeds, else within each arm."""
    whole = values.value_NK[np.isfinite(values.value_NK).all(axis=1)]
    if len(whole) > 1 and whole.shape[1] > 1:
        sd, paired = float(np.sqrt(statistics.residual_variance(whole))), True
        n, seed_sd = len(whole), float(whole.mean(axis=1).std(ddof=1))
    else:
        columns = [column[np.isfinite(column)] for column in values.value_NK.T]
        variances = [column.var(ddof=1) for column in columns if len(column) > 1]
        if not variances:
            return None
        sd, paired, n, seed_sd = float(np.sqrt(np.mean(variances))), False, max(map(len, columns)), None
    found = statistics.detectable(2**0.5 * sd, n)
    return {"sd_of_a_run": sd, "beyond_its_seed": paired, "sd_of_a_seed": seed_sd, "seeds": n, "detectable": found}


def placebo(contrast: Contrast | None) -> dict[str, Any] | None:
    """The two labels swapped within seeds: how many of the swaps show a difference as large."""
    if contrast is None or len(contrast.by_seed) < FEWEST_SEEDS:
        return None
    share, n = statistics.share_as_large(contrast.by_seed)
    return {"swaps": n, "share_as_large": share}


def judged_by(question: Question) -> Measure:
    """The measure that the question is about."""
    return measure(question.metric)


def arms_as_json(values: Values) -> Sequence[Mapping[str, Any]]:
    """`arms` of compare.json."""
    return [{"setting": arm.label, **vars(values.figure(arm))} for arm in values.arms]

"""Losses of sequences to the loss curve of an order with nothing learned: what a step owes to its batches alone.

In: every sequence's loss at fixed parameters, and a planned epoch. Out: the loss of each optimizer step as
`train/loss` would show it, its running median, where it jumps, and the figures of plan.json. At fixed parameters
nothing is learned and nothing forgotten, so whatever moves here is composition.
"""

# S sequences, N batches, K buckets

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dflash_exp.plan.epoch import EpochPlan

MEDIAN_STEPS = 101
"""The running median is over so many steps, mirrored at both ends of the epoch."""
JUMP_SDS = 3.0
"""A step jumps when it is above the running median by more robust standard deviations than this."""
SD_PER_MAD = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""


@dataclass(frozen=True, eq=False)
class SequenceLosses:
    """What every sequence of a run's training data costs at one of its checkpoints, at the anchors of epoch 0."""

    run: str
    """The run's directory."""
    checkpoint: str
    loss: np.ndarray
    """float64 [S], the weighted sum of token losses."""
    weight: np.ndarray
    """float64 [S], the sum of the weights: a batch's loss is the sum of its losses over the sum of its weights."""


@dataclass(frozen=True, eq=False)
class LossCurve:
    """The loss of each optimizer step of an epoch, at fixed parameters."""

    loss: np.ndarray
    """float64 [n_steps], `train/loss`; NaN for a step in which nothing counts."""
    by_bucket: np.ndarray
    """float64 [n_steps], the same with every batch's loss replaced by the mean of its bucket."""
    bucket_mean: np.ndarray
    """float64 [K], the mean loss of each bucket; NaN where nothing counts."""
    mean: float
    """Of the epoch: the same for every order."""

    @cached_property
    def median(self) -> np.ndarray:
        """The running median of the steps that have a loss."""
        from scipy.ndimage import median_filter  # takes .5 s, which a run does not need

        shown = np.isfinite(self.loss)
        median = np.full_like(self.loss, np.nan)
        median[shown] = median_filter(self.loss[shown], size=MEDIAN_STEPS, mode="reflect")
        return median

    @cached_property
    def jumps(self) -> np.ndarray:
        """Whether a step stands out above the running median, bool [n_steps]."""
        above = self.loss - self.median
        sd = SD_PER_MAD * np.nanmedian(np.abs(above))
        return (above > JUMP_SDS * sd) & (sd > 0)


def loss_curve(plan: EpochPlan, losses: SequenceLosses) -> LossCurve:
    """The curve of a planned epoch whose sequences these are the losses of, in the same order."""
    n_buckets = len(plan.counts)
    loss_N, weight_N = plan.batch_sums(losses.loss), plan.batch_sums(losses.weight)
    loss_K = np.bincount(plan.order, weights=loss_N, minlength=n_buckets)
    weight_K = np.bincount(plan.order, weights=weight_N, minlength=n_buckets)
    mean_K = _ratio(loss_K, weight_K)
    expected_N = np.nan_to_num(mean_K)[plan.order] * weight_N
    loss, expected, weight = (np.add.reduceat(of_N, plan.bounds[:-1]) for of_N in (loss_N, expected_N, weight_N))
    return LossCurve(_ratio(loss, weight), _ratio(expected, weight), mean_K, float(loss_K.sum() / weight_K.sum()))


def loss_figures(curve: LossCurve, losses: SequenceLosses) -> dict[str, object]:
    """`loss_from` of plan.json. Standard deviations are over the steps."""
    return {
        "run": losses.run,
        "checkpoint": losses.checkpoint,
        "mean": curve.mean,
        "per_bucket_mean": [None if np.isnan(mean) else mean for mean in curve.bucket_mean.tolist()],
        "curve_sd": float(np.nanstd(curve.loss)),
        "curve_sd_within": float(np.nanstd(curve.loss - curve.by_bucket)),
        "median_sd": float(np.nanstd(curve.median)),
        "jumps": int(curve.jumps.sum()),
    }


def _ratio(loss: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.divide(loss, weight, out=np.full_like(loss, np.nan), where=weight > 0)

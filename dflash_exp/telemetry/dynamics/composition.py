"""How much of the loss's movement the length buckets of a step account for, and how much labels at random would.

In: each step's sums by bucket. Out: its forecast, made before it from what each bucket cost lately; what is left; and
the share of the variance that the forecast takes away.

Definitions, at step t with loss l (`train/loss`, a mean over the step's weights):
  forecast f   the mean over the step's weights (known before it: they follow from its anchors) of the mean loss of each
               bucket over past steps, which count half after 50 steps; a bucket not met yet counts as all do together
  y            l minus the median of the up to 101 losses before t
  e            (l - f) minus the median of the up to 101 values of l - f before t: the same detrending
  share        1 - var(e) / var(y) over all steps so far with 101 before them. Negative where the forecast does harm.
  permuted     the mean share of 16 forecasts whose bucket labels are drawn, seeded, from all labels so far: what the
               same arithmetic finds where a bucket says nothing. Below 0 by the noise of such a forecast, and by its
               lag where the loss falls fast
"""

# P labellings, the true one first; K buckets; U units: the batches of one bucket in a step

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_exp.messages import LossSums

WINDOW, LEAST_WINDOW = 101, 20
"""Steps of the running median, and those it needs at least."""
N_PERMUTED = 16
KEPT_A_STEP = 0.5 ** (1 / 50)
LEAST_STEPS = 50
"""Steps that a share is taken over at least."""


@dataclass(frozen=True)
class Parts:
    """A step's loss, detrended."""

    raw: float
    """y"""
    residual: float
    """e"""


class Forecast:
    """Of one run, step by step."""

    def __init__(self, n_buckets: int, seed: int) -> None:
        self._seed = seed
        self._loss_PK = np.zeros((1 + N_PERMUTED, n_buckets))
        self._weight_PK = np.zeros_like(self._loss_PK)
        self._labels_K = np.zeros(n_buckets)
        self._losses: list[float] = []
        self._errors_P: list[np.ndarray] = []
        self._n_counted = 0
        self._mean, self._squares = np.zeros(2 + N_PERMUTED), np.zeros(2 + N_PERMUTED)
        """Of y and of each e, over the steps counted: Welford's."""

    def add(self, step: int, by_bucket: Mapping[int, LossSums]) -> Parts | None:
        """Take a step in; None where nothing counts in it, where it is not finite, or where too few were before it."""
        shown = {bucket: sums for bucket, sums in by_bucket.items() if sums.weight > 0}
        loss_U = np.array([sums.loss for sums in shown.values()])
        weight_U = np.array([sums.weight for sums in shown.values()])
        if not shown or not np.isfinite(loss_U).all():
            return None
        labels_PU = self._labelled(step, list(shown))
        loss = float(loss_U.sum() / weight_U.sum())
        error_P = loss - self._forecast(labels_PU, weight_U)
        parts = self._detrended(loss, error_P)
        self._take_in(labels_PU, loss_U, weight_U)
        self._losses = [*self._losses, loss][-WINDOW:]
        self._errors_P = [*self._errors_P, error_P][-WINDOW:]
        return parts

    def shares(self) -> tuple[float, float] | None:
        """The share, and the mean one of permuted labels; None for too few steps, or where nothing moves."""
        if self._n_counted < LEAST_STEPS or self._squares[0] == 0:
            return None
        shares_P = 1 - self._squares[1:] / self._squares[0]
        return float(shares_P[0]), float(shares_P[1:].mean())

    def state(self) -> dict[str, Any]:
        """As JSON holds it."""
        arrays = {name: value.tolist() for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        errors = [error_P.tolist() for error_P in self._errors_P]
        return arrays | {"_losses": self._losses, "_errors_P": errors, "_n_counted": self._n_counted}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""
        for name in ("_loss_PK", "_weight_PK", "_labels_K", "_mean", "_squares"):
            vars(self)[name] = np.array(state[name])
        self._errors_P = [np.array(error_P) for error_P in state["_errors_P"]]
        self._losses, self._n_counted = list(state["_losses"]), state["_n_counted"]

    def _labelled(self, step: int, buckets: list[int]) -> np.ndarray:
        """The units' buckets; below them, drawn by seed and step alone, labels from those so far and these."""
        np.add.at(self._labels_K, buckets, 1)
        upto_K = np.cumsum(self._labels_K)
        draws = np.random.Generator(np.random.PCG64([self._seed, step])).random((N_PERMUTED, len(buckets)))
        drawn = np.searchsorted(upto_K, draws * upto_K[-1], side="right")
        return np.concatenate([np.array([buckets]), drawn])

    def _forecast(self, labels_PU: np.ndarray, weight_U: np.ndarray) -> np.ndarray:
        loss_PK, weight_PK = self._loss_PK[: len(labels_PU)], self._weight_PK[: len(labels_PU)]
        all_P = loss_PK.sum(1) / np.maximum(weight_PK.sum(1), np.finfo(float).tiny)
        mean_PK = np.divide(loss_PK, weight_PK, out=np.repeat(all_P[:, None], loss_PK.shape[1], 1), where=weight_PK > 0)
        return (np.take_along_axis(mean_PK, labels_PU, 1) * weight_U).sum(1) / weight_U.sum()

    def _detrended(self, loss: float, error_P: np.ndarray) -> Parts | None:
        if len(self._losses) < LEAST_WINDOW:
            return None
        raw = loss - float(np.median(self._losses))
        residual_P = error_P - np.median(self._errors_P, axis=0)
        if len(self._losses) == WINDOW:
            self._n_counted += 1
            values = np.concatenate([[raw], residual_P])
            before = values - self._mean
            self._mean = self._mean + before / self._n_counted
            self._squares = self._squares + before * (values - self._mean)
        return Parts(raw, float(residual_P[0]))

    def _take_in(self, labels_PU: np.ndarray, loss_U: np.ndarray, weight_U: np.ndarray) -> None:
        self._loss_PK *= KEPT_A_STEP
        self._weight_PK *= KEPT_A_STEP
        rows_PU = np.repeat(np.arange(len(labels_PU))[:, None], labels_PU.shape[1], 1)
        np.add.at(self._loss_PK, (rows_PU, labels_PU), np.broadcast_to(loss_U, labels_PU.shape))
        np.add.at(self._weight_PK, (rows_PU, labels_PU), np.broadcast_to(weight_U, labels_PU.shape))

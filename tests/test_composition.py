"""The curve of an order at fixed parameters, worked out by hand."""

import numpy as np
import pytest

from dflash_exp.composition import LossCurve, SequenceLosses, loss_curve, loss_figures
from dflash_exp.plan.batches import TokenBudget
from dflash_exp.plan.buckets import Fixed
from dflash_exp.plan.epoch import EpochPlan, Planner, PlanSettings
from dflash_exp.plan.interleave import Interleave, Sequential, Shuffle
from dflash_exp.plan.seeds import Seeds
from dflash_exp.plan.sequences import Sequences

LENGTHS = np.array([4, 8, 4, 8])


def epoch_of(interleave: Interleave, batches_per_step: int = 2, lengths: np.ndarray = LENGTHS) -> EpochPlan:
    """Budget 8: the two of 4 tokens are the batch of bucket 0, each of 8 is one of bucket 1."""
    settings = PlanSettings(
        Fixed([4, 8]), TokenBudget(8, 0, None, False), interleave, batches_per_step, Seeds(0, 0, 0, 0)
    )
    return Planner(Sequences(lengths, np.arange(len(lengths))), settings).epoch(0)


def losses_of(loss: list[float], weight: list[float]) -> SequenceLosses:
    return SequenceLosses("runs/a", "step-00000007", np.array(loss), np.array(weight))


def curve_of(loss: np.ndarray) -> LossCurve:
    return LossCurve(loss, loss, np.array([0.0]), 0.0)


def test_a_step_s_loss_is_its_sequences_losses_over_their_weights() -> None:
    losses = losses_of([2.0, 5.0, 4.0, 9.0], [1.0, 1.0, 3.0, 3.0])
    epoch = epoch_of(Sequential())
    first_long, last_long = (int(row) for batch in epoch.step(0)[1:] + epoch.step(1) for row in batch.sequence_rows)
    curve = loss_curve(epoch, losses)
    # bucket 0: (2 + 4) / (1 + 3); bucket 1: (5 + 9) / (1 + 3); all: 20 / 8
    assert curve.bucket_mean.tolist() == [1.5, 3.5] and curve.mean == 2.5
    expected = {(1, 3): ([11 / 5, 9 / 3], [9.5 / 5, 3.5]), (3, 1): ([15 / 7, 5 / 1], [16.5 / 7, 3.5])}
    loss, by_bucket = expected[first_long, last_long]
    assert curve.loss.tolist() == pytest.approx(loss, rel=1e-15)
    assert curve.by_bucket.tolist() == pytest.approx(by_bucket, rel=1e-15)
    figures = loss_figures(curve, losses)
    assert (figures["run"], figures["checkpoint"], figures["mean"]) == ("runs/a", "step-00000007", 2.5)
    assert figures["per_bucket_mean"] == [1.5, 3.5]
    assert figures["curve_sd"] == pytest.approx(abs(loss[0] - loss[1]) / 2)
    within = (loss[0] - by_bucket[0]) - (loss[1] - by_bucket[1])
    assert figures["curve_sd_within"] == pytest.approx(abs(within) / 2)


def test_nothing_is_left_within_the_buckets_where_each_sequence_costs_its_bucket_s_mean() -> None:
    lengths = np.array([4] * 40 + [8] * 30)
    losses = losses_of([2.0] * 40 + [9.0] * 30, [1.0] * 40 + [3.0] * 30)
    figures = loss_figures(loss_curve(epoch_of(Shuffle(), lengths=lengths), losses), losses)
    assert figures["per_bucket_mean"] == [2.0, 3.0]
    assert figures["curve_sd_within"] == pytest.approx(0, abs=1e-12)
    assert 0.1 < float(str(figures["curve_sd"])) < 0.5


def test_what_does_not_count_has_no_loss_and_spoils_none() -> None:
    losses = losses_of([0.0, 5.0, 0.0, 7.0], [0.0, 1.0, 0.0, 1.0])
    curve = loss_curve(epoch_of(Sequential(), batches_per_step=1), losses)
    assert np.isnan(curve.loss).tolist() == np.isnan(curve.median).tolist() == [True, False, False]
    figures = loss_figures(curve, losses)
    assert figures["per_bucket_mean"] == [None, 6.0] and figures["mean"] == 6.0
    assert figures["curve_sd"] == 1.0


@pytest.mark.parametrize("n_steps", [1, 30, 101, 400])
def test_the_running_median_is_over_101_steps_mirrored_at_both_ends(n_steps: int) -> None:
    loss = np.random.default_rng(0).normal(size=n_steps)
    mirrored = np.pad(loss, 50, mode="symmetric")
    expected = [np.median(mirrored[step : step + 101]) for step in range(n_steps)]
    assert curve_of(loss).median.tolist() == expected


def test_a_jump_is_far_above_the_running_median_and_never_below_it() -> None:
    loss = np.tile([1.9, 2.0, 2.1], 60)  # half of the steps' distance from 2.0 is .1: robust SD .148
    loss[[20, 90, 91, 120]] = [2.4, 2.46, 3.0, 0.5]
    assert np.flatnonzero(curve_of(loss).jumps).tolist() == [90, 91]
    assert not curve_of(np.full(50, 2.0)).jumps.any()


def test_the_mean_is_that_of_every_order_and_the_curve_is_not() -> None:
    lengths = np.tile(LENGTHS, 20)
    rng = np.random.default_rng(1)
    losses = losses_of(rng.uniform(1, 5, 80).tolist(), rng.uniform(1, 3, 80).tolist())
    one, two = (loss_curve(epoch_of(order, 3, lengths), losses) for order in (Sequential(), Shuffle()))
    assert one.mean == pytest.approx(two.mean, rel=1e-14)
    assert not np.allclose(one.loss, two.loss)
    assert one.bucket_mean.tolist() == pytest.approx(two.bucket_mean.tolist(), rel=1e-14)

"""Every metric's name and arithmetic, worked out by hand."""

import math
from dataclasses import replace

import pytest

from dflash_exp.messages import ChannelFill, LossSums, StageTime, StepResult, StepTiming
from dflash_exp.telemetry.metrics import is_timing, loss_metrics, probe_metrics, step_metrics, timing_metrics

SHORT = LossSums(loss=6.0, weight=4.0, correct=3, slots=10, accepted=2, anchors=4)
LONG = LossSums(loss=3.0, weight=2.0, correct=1, slots=6, accepted=4, anchors=4)
NOTHING = LossSums(loss=0.0, weight=0.0, correct=0, slots=0, accepted=0, anchors=1)
RESULT = StepResult(
    epoch=1,
    sums=SHORT + LONG,
    by_bucket={0: SHORT, 3: LONG, 5: NOTHING},
    buckets=[3, 0, 5],
    tokens=75,
    padded_tokens=100,
    short_step=True,
    lr=0.01,
    grad_norm=2.5,
    clipped=True,
    skipped=False,
)
TIMING = StepTiming(
    prefetch=StageTime(0.1, 0.7),
    target=StageTime(0.2, 0.6),
    drafter=StageTime(0.3, 0.5000004),
    step_s=0.8,
    channels={"batches": ChannelFill(7, 8, 1000), "features": ChannelFill(0, 12, 0)},
    meeting_s=0.0625,
)


def test_a_step_s_metrics_are_these_names_and_figures() -> None:
    assert step_metrics(RESULT) == {
        "train/loss": 9.0 / 6.0,
        "train/accuracy": 4 / 16,
        "train/tau_teacher_forced": 1 + 6 / 8,
        "train/grad_norm": 2.5,
        "train/clipped": True,
        "train/skipped": False,
        "train/lr": 0.01,
        "train/anchors": 8,
        "train/weight": 6.0,
        "batch/buckets": [3, 0, 5],
        "batch/tokens": 75,
        "batch/padding_share": 0.25,
        "batch/short_step": True,
        "bucket/0/loss": 1.5,
        "bucket/3/loss": 1.5,
    }


def test_the_probe_s_metrics_are_means_over_all_blocks_and_losses_by_bucket() -> None:
    assert probe_metrics({0: SHORT, 2: LossSums(9.0, 1.0, 0, 2, 0, 4), 4: NOTHING}) == {
        "probe/loss": 15.0 / 5.0,
        "probe/tau_teacher_forced": 1 + 2 / 9,
        "probe/bucket/0/loss": 1.5,
        "probe/bucket/2/loss": 9.0,
    }


def test_where_nothing_counts_there_is_no_mean() -> None:
    assert loss_metrics("train", NOTHING) == {}
    assert probe_metrics({}) == {} and probe_metrics({0: NOTHING}) == {}


def test_a_figure_that_is_not_finite_is_none_as_json_has_no_other_word() -> None:
    broken = LossSums(math.nan, 4.0, 3, 10, 2, 4)
    metrics = step_metrics(replace(RESULT, sums=broken, by_bucket={0: broken}, grad_norm=math.inf, skipped=True))
    none = [name for name, value in metrics.items() if value is None]
    assert none == ["train/loss", "train/grad_norm", "bucket/0/loss"] and metrics["train/skipped"] is True


def test_timing_is_each_stage_s_seconds_each_channel_s_fill_real_tokens_a_second_and_the_time_left() -> None:
    assert timing_metrics(TIMING, tokens=400, epoch_share=0.25, eta_s=90.04) == {
        "pipeline/prefetch_busy_s": 0.1,
        "pipeline/prefetch_wait_s": 0.7,
        "pipeline/target_busy_s": 0.2,
        "pipeline/target_wait_s": 0.6,
        "pipeline/drafter_busy_s": 0.3,
        "pipeline/drafter_wait_s": 0.5,
        "pipeline/all_reduce_s": 0.0625,
        "channel/batches/items": 7,
        "channel/batches/bytes": 1000,
        "channel/features/items": 0,
        "channel/features/bytes": 0,
        "throughput/tokens_per_s": 500.0,
        "progress/epoch_share": 0.25,
        "progress/eta_s": 90.0,
    }


def test_host_bound_seconds_are_recorded_where_a_device_says_them() -> None:
    timing = replace(TIMING, target=StageTime(0.2, 0.6, host_bound_s=0.1500004))
    metrics = timing_metrics(timing, tokens=400, epoch_share=0.25, eta_s=90.0)
    assert metrics["pipeline/target_host_bound_s"] == 0.15 and is_timing("pipeline/target_host_bound_s")
    assert "pipeline/drafter_host_bound_s" not in metrics and "pipeline/prefetch_host_bound_s" not in metrics


def test_where_there_are_no_channels_there_are_no_metrics_of_them() -> None:
    names = timing_metrics(replace(TIMING, channels={}), tokens=400, epoch_share=0.25, eta_s=90.0)
    assert not [name for name in names if name.startswith("channel/")]


def test_every_timing_metric_is_known_as_timing_and_no_result_is() -> None:
    timing = timing_metrics(TIMING, 400, 0.25, 30.0)
    assert all(is_timing(name) for name in [*timing, "time_s", "checkpoint/stall_s"])
    results = step_metrics(RESULT) | probe_metrics({0: SHORT})
    assert not any(is_timing(name) for name in [*results, "step"])


@pytest.mark.parametrize("sums", [SHORT, LONG])
def test_tau_teacher_forced_counts_the_bonus_token(sums: LossSums) -> None:
    assert loss_metrics("train", sums)["train/tau_teacher_forced"] == 1 + sums.accepted / 4

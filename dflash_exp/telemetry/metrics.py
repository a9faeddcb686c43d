"""Names and arithmetic of every metric.

In: what a step did and how long it took. Out: flat dictionaries for metrics.jsonl. `time_s` and the fields under
`TIMING_PREFIXES` are timing; every other field is a result, the same for the same run.
"""

import math
from collections.abc import Mapping
from typing import Any

from dflash_exp.messages import LossSums, StepResult, StepTiming, total

TIMING_PREFIXES = ("pipeline/", "channel/", "throughput/", "progress/", "checkpoint/")
"""A field under one of these, and `time_s`, may differ between two runs that are the same."""

Metrics = dict[str, Any]
"""Numbers, flags and lists of bucket indices, as JSON holds them."""


def is_timing(name: str) -> bool:
    """Whether a field may differ between two runs that are the same."""
    return name == "time_s" or name.startswith(TIMING_PREFIXES)


def loss_metrics(group: str, sums: LossSums) -> Metrics:
    """Mean loss, accuracy and teacher-forced prefix of some blocks; nothing where no slot counts.

    `tau_teacher_forced` is 1 + the mean accepted prefix against the data: it reads higher than decoding.
    """
    if sums.weight == 0:
        return {}
    return {
        f"{group}/loss": sums.loss / sums.weight,
        f"{group}/accuracy": sums.correct / sums.slots,
        f"{group}/tau_teacher_forced": 1 + sums.accepted / sums.anchors,
    }


def step_metrics(result: StepResult) -> Metrics:
    """Every result of one optimizer step."""
    metrics = loss_metrics("train", result.sums)
    metrics |= {
        "train/grad_norm": result.grad_norm,
        "train/clipped": result.clipped,
        "train/skipped": result.skipped,
        "train/lr": result.lr,
        "train/anchors": result.sums.anchors,
        "train/weight": result.sums.weight,
        "batch/buckets": result.buckets,
        "batch/tokens": result.tokens,
        "batch/padding_share": 1 - result.tokens / result.padded_tokens,
        "batch/short_step": result.short_step,
    }
    return _finite(metrics | bucket_losses("bucket", result.by_bucket))


def _finite(metrics: Metrics) -> Metrics:
    """NaN and infinity, which JSON does not have, as None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}


def bucket_losses(group: str, by_bucket: Mapping[int, LossSums]) -> Metrics:
    """Mean loss of each bucket in which something counts."""
    return {f"{group}/{bucket}/loss": sums.loss / sums.weight for bucket, sums in by_bucket.items() if sums.weight > 0}


def probe_metrics(by_bucket: Mapping[int, LossSums]) -> Metrics:
    """Loss and teacher-forced prefix on the held-out conversations, together and by bucket."""
    whole = loss_metrics("probe", total(by_bucket.values()))
    metrics = {name: value for name, value in whole.items() if name != "probe/accuracy"}
    return _finite(metrics | bucket_losses("probe/bucket", by_bucket))


def timing_metrics(timing: StepTiming, tokens: int, epoch_share: float, eta_s: float) -> Metrics:
    """Where the step's time went, how much of the epoch is done, and how long the run still takes."""
    metrics: Metrics = {}
    for name, stage in (("prefetch", timing.prefetch), ("target", timing.target), ("drafter", timing.drafter)):
        metrics[f"pipeline/{name}_busy_s"] = round(stage.busy_s, 6)
        metrics[f"pipeline/{name}_wait_s"] = round(stage.wait_s, 6)
        if stage.host_bound_s is not None:
            metrics[f"pipeline/{name}_host_bound_s"] = round(stage.host_bound_s, 6)
    metrics["pipeline/all_reduce_s"] = round(timing.meeting_s, 6)
    for name, fill in timing.channels.items():
        metrics |= {f"channel/{name}/items": fill.items, f"channel/{name}/bytes": fill.bytes}
    return metrics | {
        "throughput/tokens_per_s": round(tokens / timing.step_s, 1),
        "progress/epoch_share": round(epoch_share, 6),
        "progress/eta_s": round(eta_s, 1),
    }

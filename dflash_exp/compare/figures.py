"""All figures of a comparison, as far as the runs have what they show.

In: a report. Out: `Picture`s, in the order in which one reads them.
"""

# K buckets

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from dflash_exp.compare import figures_curves, figures_effects, figures_orders
from dflash_exp.compare.arms import Arm
from dflash_exp.compare.drawing import drawn_arms
from dflash_exp.compare.judged import blocks_of
from dflash_exp.compare.report import Report
from dflash_exp.compare.tau import decoded_tau

PROBE_BUCKET = re.compile(r"probe/bucket/(\d+)/loss$")
TRAIN_BUCKET = re.compile(r"bucket/(\d+)/loss$")
MOST_PANELS, MOST_ORDERS = 12, 12
DIFFERENCES = "Bar: 95 % interval, diamond: mean, dots: seeds, each against its baseline. Green: counts as equal."
LOSSES = (
    "Bands: 95 % interval over seeds, of fewer than three seeds their range. The difference is by seed; the train loss "
    "is the mean of stretches of the run."
)
DECODED = "Decoded: 95 % interval by a bootstrap over prompts and seeds; all arms are decoded on the same prompts."
CONFLICT = "Cosine between the gradients of two buckets' parts of the probe; mean over seeds. Red: at odds."
SPEED = "Bar: mean, dots: seeds. Tokens without padding; the share of the time in which the drafter waits for features."


@dataclass(frozen=True, eq=False)
class Picture:
    """One figure."""

    name: str
    """Of its files."""
    title: str
    caption: str
    figure: Figure


def pictures(report: Report, composition: Mapping[str, np.ndarray]) -> list[Picture]:
    """`composition`: by a run's name, the loss of each of its steps with nothing learned, where that is known."""
    drawn = drawn_arms(report.arms, report.baseline)
    found = []
    if report.contrasts:
        kind = report.judged.measure
        figure = figures_effects.verdict_figure(report.contrasts, drawn, kind)
        found.append(Picture("verdict", "The differences", DIFFERENCES, figure))
    if any(each.runs for each in drawn):
        caption = LOSSES
        found.append(Picture("loss", "Loss over tokens", caption, figures_curves.loss_figure(drawn, composition)))
        found += _of_buckets(report)
    found += _of_orders(report)
    tau = {arm.label: decoded_tau([run for run in arm.runs.values() if run.finished]) for arm in report.arms}
    known = {label: ends for label, ends in tau.items() if ends is not None}
    if known or report.row("probe/tau_replayed"):
        caption = DECODED
        found.append(Picture("tau", "Accepted tokens", caption, figures_curves.tau_figure(drawn, known)))
    speed, waits = report.row("throughput/tokens_per_s"), report.row("wait_share")
    conflicts = [held for arm in report.arms if (held := conflict_of(arm)) is not None]
    if conflicts:
        figure = figures_effects.conflict_figure(conflicts)
        found.append(Picture("conflict", "Buckets at odds", CONFLICT, figure))
    if speed and waits:
        figure = figures_effects.speed_figure(drawn, speed.values, waits.values)
        found.append(Picture("speed", "Speed", SPEED, figure))
    return found


def _of_buckets(report: Report) -> list[Picture]:
    """The probe's losses by bucket, else those of the steps."""
    shown = bucket_fields(report.arms)
    if not shown:
        return []
    figure = figures_curves.bucket_figure(drawn_arms(report.arms, report.baseline), shown)
    of = "On held-out conversations." if next(iter(shown.values())).startswith("probe/") else "Of the steps."
    caption = f"{of} Buckets are in the order of their lengths."
    return [Picture("buckets", "Loss by bucket", caption, figure)]


def bucket_fields(arms: Sequence[Arm]) -> dict[int, str]:
    """The field of each bucket that is shown: the probe's, else the steps'; empty where the runs have neither."""
    fields = {field for arm in arms for run in arm.runs.values() for field in run.columns}
    for pattern in (PROBE_BUCKET, TRAIN_BUCKET):
        matched = {int(match[1]): field for field in fields if (match := pattern.match(field))}
        if matched:
            return dict(sorted(matched.items())[:MOST_PANELS])
    return {}


def _of_orders(report: Report) -> list[Picture]:
    orders = orders_of(report.arms)[:MOST_ORDERS]
    if not orders or max(len(set(order.tolist())) for _, order in orders) < 2:
        return []
    which = "One run of each arm, of one seed where all have it. Light: long buckets."
    return [
        Picture("shares", "Cumulative shares of the buckets", f"Against each bucket's share of the whole. {which}",
                figures_orders.shares_figure(orders)),
        Picture("orders", "The orders", which, figures_orders.strips_figure(orders)),
    ]  # fmt: skip


def conflict_of(arm: Arm) -> tuple[str, list[int], np.ndarray] | None:
    """The mean over an arm's runs of what their gradients' cosines by bucket were; None where none recorded them."""
    held = [(run.result.get("dynamics") or {}).get("conflict") for run in arm.runs.values() if run.finished]
    known = [one for one in held if one and one["buckets"]]
    same = [one for one in known if one["buckets"] == known[0]["buckets"]]
    return (arm.label, same[0]["buckets"], np.mean([one["cosines"] for one in same], axis=0)) if same else None


def orders_of(arms: Sequence[Arm]) -> list[tuple[str, np.ndarray]]:
    """What one run of each arm was trained on, all of one seed where one seed has all arms."""
    blocks = [
        block for block in blocks_of(arms) if all(block in arm.runs and len(arm.runs[block].order) for arm in arms)
    ]
    found = []
    for arm in arms:
        runs = [arm.runs[blocks[0]]] if blocks else [run for run in arm.runs.values() if len(run.order)]
        if runs:
            found.append((arm.label, runs[0].order))
    return found

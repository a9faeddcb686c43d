"""The numbers of plan.json, against orders small enough to work out by hand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_exp.plan import diagnosis
from dflash_exp.plan.align import step_bounds
from dflash_exp.plan.batches import TokenBudget
from dflash_exp.plan.buckets import Fixed
from dflash_exp.plan.diagnosis import BatchCosts, anchor_weight, cost_per_batch, diagnose, diagnose_order
from dflash_exp.plan.epoch import EpochPlan, Planner, PlanSettings
from dflash_exp.plan.interleave import DiversityFirst, Shuffle, StrideJitter, Weights
from dflash_exp.plan.seeds import Seeds
from dflash_exp.plan.sequences import Sequences

ORDER = np.array([0, 0, 2, 2, 2, 0, 2, 2], dtype=np.int32)
COUNTS = np.array([3, 0, 5])
SEEDS = Seeds(init=1, data=2, anchors=3, order=4)
KEYS = [
    *["strategy", "seeds", "epoch", "edges", "counts", "sequences", "tokens"],
    *["anchors", "padding_share", "per_bucket", "batches_sha256", "order_sha256", "plan_sha256", "batches_per_step"],
    *["max_run", "mean_run", "run_lengths", "max_prefix_deviation", "exhausted_at", "pick_rate", "tail_batches"],
    *["window_tv", "step_mix_tv", "weight_per_step", "anchor_weight", "peak_lr", "lr_share", "cost"],
    *["sync_efficiency", "memory_bytes", "hours"],
    "steps_per_epoch",
    "loss_from",
]


def by_hand() -> dict[str, object]:
    return diagnose_order(ORDER, COUNTS, StrideJitter(1.0), 3, SEEDS, epoch=0)


def small_plan(weights: list[float] | None = None) -> EpochPlan:
    sequences = Sequences(
        np.array([2, 2, 2, 9, 10]),
        np.arange(5),
        weights=None if weights is None else np.array(weights),
        anchors=np.array([1, 1, 1, 4, 4]),
    )
    settings = PlanSettings(Fixed([4, 10]), TokenBudget(10, 0, None, frozen=False), Shuffle(), 2, SEEDS)
    return Planner(sequences, settings).epoch(0)


def test_figures_of_an_order_worked_out_by_hand() -> None:
    figures = by_hand()
    assert figures["strategy"] == "stride_jitter"
    assert figures["seeds"] == {"init": 1, "data": 2, "anchors": 3, "order": 4}
    assert figures["counts"] == [3, 0, 5]
    assert figures["max_run"] == 3
    assert figures["mean_run"] == 2.0
    assert figures["run_lengths"] == {"1": 1, "2": 2, "3": 1}
    assert figures["tail_batches"] == 2
    assert figures["exhausted_at"] == [6 / 8, None, 1.0]
    assert figures["max_prefix_deviation"] == 2 - 2 * 3 / 8
    assert figures["pick_rate"] == {"first_10pct": [8 / 3, None, 0.0], "first_50pct": [4 / 3, None, 4 / 5]}
    assert figures["window_tv"] is None
    assert figures["step_mix_tv"] == {"mean": pytest.approx((7 / 24 + 1 / 24 + 3 / 8) / 3), "max": pytest.approx(3 / 8)}
    assert figures["steps_per_epoch"] == 3


def test_a_prefix_holds_at_least_one_slot() -> None:
    assert diagnosis.pick_rate(np.array([1, 0]), np.array([1, 1]), 10) == [0.0, 2.0]


def test_windows_are_disjoint_and_the_remainder_is_dropped() -> None:
    order = np.array([0] * 100 + [1] * 100 + [0] * 50, dtype=np.int32)
    figures = diagnosis.window_tv(order, np.array([150, 100]))
    assert figures == {"window": 100, "mean": pytest.approx(0.5), "max": pytest.approx(0.6)}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_the_deviation_is_the_largest_over_every_prefix_and_bucket(drawn: list[int]) -> None:
    order = np.array(drawn, dtype=np.int32)
    counts = np.bincount(order, minlength=4)
    prefixes = np.cumsum(order[:, None] == np.arange(4), axis=0)
    fair = np.arange(1, len(order) + 1)[:, None] * counts / len(order)
    assert diagnosis.max_prefix_deviation(order, counts) == pytest.approx(np.abs(prefixes - fair).max(), abs=1e-9)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_runs_rebuild_the_order(drawn: list[int]) -> None:
    order = np.array(drawn, dtype=np.int32)
    bucket, lengths = diagnosis.runs(order)
    np.testing.assert_array_equal(np.repeat(bucket, lengths), order)
    assert (np.diff(bucket) != 0).all()


def test_the_document_has_the_keys_of_plan_json_in_their_order_and_is_json() -> None:
    for document in (by_hand(), diagnose(small_plan()), diagnose(small_plan([1.0] * 5), np.ones(2))):
        assert list(document) == KEYS
        assert json.loads(json.dumps(document)) == document


def test_counts_alone_leave_null_what_they_cannot_know() -> None:
    unknown = [key for key, value in by_hand().items() if value is None]
    assert unknown == [
        *["edges", "sequences", "tokens", "anchors", "padding_share", "per_bucket", "batches_sha256", "plan_sha256"],
        *["window_tv", "weight_per_step", "anchor_weight", "peak_lr", "lr_share", "cost", "sync_efficiency"],
        *["memory_bytes", "hours", "loss_from"],
    ]


def test_a_planned_epoch_adds_lengths_anchors_and_hashes() -> None:
    plan = small_plan()
    document = diagnose(plan)
    assert document["edges"] == [4, 10]
    assert document["counts"] == [1, 2]
    assert (document["sequences"], document["tokens"], document["anchors"]) == (5, 25, 11)
    assert document["padding_share"] == 0.0
    assert document["batches_sha256"] == plan.batches_sha256
    assert document["order_sha256"] == plan.order_sha256
    assert document["plan_sha256"] == plan.plan_sha256
    assert document["anchor_weight"] is None


def test_padding_is_what_the_longest_of_each_batch_adds() -> None:
    settings = PlanSettings(Fixed([10]), TokenBudget(20, 0, None, frozen=False), Shuffle(), 1, SEEDS)
    plan = Planner(Sequences(np.array([4, 10]), np.arange(2)), settings).epoch(0)
    assert diagnose(plan)["padding_share"] == pytest.approx(6 / 20)


def test_what_each_bucket_holds_worked_out_by_hand() -> None:
    sequences = Sequences(np.array([2, 4, 9, 3, 10]), np.arange(5), anchors=np.array([1, 2, 4, 0, 5]))
    settings = PlanSettings(Fixed([4, 6, 10]), TokenBudget(20, 0, None, frozen=False), Shuffle(), 2, SEEDS)
    plan = Planner(sequences, settings).epoch(0)  # 2, 4 and 3 in one batch, 9 and 10 in another
    assert diagnose(plan)["per_bucket"] == {
        "sequences": [3, 0, 2], "anchors": [3, 0, 9], "tokens": [9, 0, 19], "padded_tokens": [12, 0, 20]
    }  # fmt: skip
    bare = Planner(Sequences(np.array([2, 4]), np.arange(2)), settings).epoch(0)
    assert diagnosis.per_bucket(bare)["anchors"] is None


def test_anchor_weights_worked_out_by_hand() -> None:
    # two steps: (b0 of weight 3, b1 of weight 1) and (b1 of weight 4); fair shares 3/8 and 5/8
    order, weight = np.array([0, 1, 1]), np.array([3.0, 1.0, 4.0])
    weights = anchor_weight(order, weight, np.array([0, 2, 3]), n_buckets=3)
    assert weights["epoch"] == [1.0, 1.0, None]
    assert weights["step"][:2] == pytest.approx([(0.75 / 2) / (3 / 8), (1.25 / 2) / (5 / 8)])
    assert weights["batch"][:2] == pytest.approx([(0.5 / 2) / (3 / 8), (1.5 / 2) / (5 / 8)])


def test_batches_without_weight_count_for_nothing() -> None:
    weights = anchor_weight(np.array([0, 1, 0]), np.array([0.0, 0.0, 2.0]), np.array([0, 2, 3]), n_buckets=2)
    assert weights == {"epoch": [1.0, None], "step": [1.0, None], "batch": [1.0, None]}


def test_dividing_by_the_step_favours_long_sequences_and_most_under_diversity_first() -> None:
    # anchors a batch 8065 and 1197 are the story's ends at 16k tokens, those between are ours; 8 batches a step
    counts = np.array([2120, 4200, 5723, 7100, 8009, 19581])
    anchors = np.array([8065.0, 5000.0, 3700.0, 2700.0, 2000.0, 1197.0])
    ratio = {}
    for strategy in (Shuffle(), DiversityFirst(Weights.remaining)):
        order = strategy.order(counts, np.random.default_rng(0))
        weights = anchor_weight(order, anchors[order], step_bounds(len(order), 8), 6)
        for reduction, (short, *_, long) in weights.items():
            assert short is not None and long is not None
            ratio[type(strategy), reduction] = long / short
    assert ratio[Shuffle, "epoch"] == pytest.approx(1.0, abs=1e-12)
    assert ratio[Shuffle, "step"] == pytest.approx(1.35, abs=0.08)
    assert ratio[DiversityFirst, "step"] == pytest.approx(1.60, abs=0.1)
    assert ratio[Shuffle, "batch"] == pytest.approx(8065 / 1197, rel=0.001)


def test_a_constant_learning_rate_is_shared_fairly_and_a_falling_one_favours_the_early() -> None:
    plan = small_plan([1.0, 1.0, 1.0, 4.0, 4.0])
    assert diagnose(plan, np.full(2, 0.3))["lr_share"] == pytest.approx([1.0, 1.0])
    assert diagnose(plan)["weight_per_step"] == 11 / 2
    weight = plan.batch_sums(np.array([1.0, 1.0, 1.0, 4.0, 4.0]))
    early = np.where(np.arange(3) < 2, 1.0, 0.0) * weight
    by_bucket = [early[plan.order == b].sum() / early.sum() / (weight[plan.order == b].sum() / 11) for b in (0, 1)]
    assert diagnose(plan, np.array([1.0, 0.0]))["lr_share"] == pytest.approx(by_bucket)
    assert diagnose(small_plan(), np.ones(2))["lr_share"] is None


def test_costs_are_means_of_a_batch_and_the_dearer_stage_is_the_bottleneck() -> None:
    order, counts = np.array([1, 0, 1]), np.array([1, 2])
    costs = BatchCosts(np.array([4.0, 1.0, 6.0]), np.array([2.0, 9.0, 2.0]), "s", "a watch")
    assert cost_per_batch(order, counts, costs) == {
        "target": [1.0, 5.0], "drafter": [9.0, 2.0], "bottleneck": "drafter", "unit": "s", "basis": "a watch"
    }  # fmt: skip
    slower = BatchCosts(costs.target * 1.3, costs.drafter, "s", "a watch")
    assert cost_per_batch(order, counts, slower)["bottleneck"] == "target"


def test_counts_without_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^plan\.counts must hold at least one batch, got \[0, 0\]"):
        diagnose_order(np.array([], dtype=np.int32), np.array([0, 0]), Shuffle(), 1, SEEDS, epoch=0)

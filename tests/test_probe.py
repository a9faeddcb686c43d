"""The probe measures the same blocks each time, by training bucket, and training does not notice."""

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from dflash_exp import kept as kept_module
from dflash_exp.data.collate import Collator
from dflash_exp.data.store import Conversations
from dflash_exp.drafter.anchors import candidates, choose_anchors
from dflash_exp.drafter.loss import LossConfig, Reduction
from dflash_exp.drafter.model import Drafter, initialise
from dflash_exp.drafter.passes import GroupedPasses
from dflash_exp.drafter.shape import DrafterShape
from dflash_exp.drafter.step import DrafterStep
from dflash_exp.messages import BatchPlan, LossSums, TargetFeatures, TokenBatch
from dflash_exp.optim import AdamW, Optimizer, Schedule, build_optimizer
from dflash_exp.pipeline.drafter_train import read_sums
from dflash_exp.plan.batches import TokenBudget
from dflash_exp.probe import Probe, probe_batches
from dflash_exp.ranks import Alone, share_out

EDGES, BUDGET = np.array([8, 14]), TokenBudget(40, 0, None, frozen=True)
SHAPE = DrafterShape(
    hidden_size=8, intermediate_size=12, n_heads=2, n_kv_heads=1, head_dim=4, n_layers=1, block_size=4, vocab_size=20,
    mask_token_id=1, target_layer_ids=(0,), rope_theta=500.0, rms_norm_eps=1e-5, n_target_layers=4,
)  # fmt: skip
OPTIM = AdamW(0.01, 0.1, [0.9, 0.95], Schedule.constant, 0.0, 0.0, 1.0)


def held_out(n: int = 12) -> Conversations:
    lengths = np.array([6 + i for i in range(n)], dtype=np.int32)  # 6..17: the last three are over the last edge
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    tokens_N = np.arange(lengths.sum()) % 19
    supervised_N = np.concatenate([np.arange(length) >= 2 for length in lengths])
    rows = np.arange(n, dtype=np.int64)
    return Conversations(tokens_N, supervised_N, starts, lengths, rows, ("a",) * n, 0, 0, "")


def anchors(epoch: int, row: int, supervised: np.ndarray) -> np.ndarray:
    return choose_anchors(0, epoch, row, candidates(supervised), 3)


def batches_of(seed: int = 0, n_sequences: int = 9) -> list[TokenBatch]:
    conversations = held_out()
    collate = Collator(conversations, anchors)
    return [collate(plan) for plan in probe_batches(conversations, n_sequences, EDGES, BUDGET, seed)]


class FakeTarget:
    """Features from the tokens; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: TokenBatch) -> TargetFeatures:
        self.calls += 1
        tokens_P = torch.cat([row[:n] for row, n in zip(batch.tokens_BT, batch.lengths_B.tolist(), strict=True)])
        return TargetFeatures(batch, torch.sin(tokens_P[:, None] + torch.arange(8.0)))


ALL_HERE = partial(share_out, Alone())


def a_step() -> tuple[DrafterStep, Optimizer]:
    draw = torch.Generator().manual_seed(0)
    drafter = Drafter(SHAPE, torch.randn(20, 8, generator=draw), torch.randn(20, 8, generator=draw))
    initialise(drafter, 0)
    optimizer = build_optimizer(OPTIM, drafter.named_parameters())
    return DrafterStep(drafter, LossConfig(Reduction.epoch, 4.0), optimizer, GroupedPasses(64), 1.0), optimizer


def count_anchors(features: TargetFeatures) -> LossSums:
    return LossSums(1.0, 1.0, 0, 1, 0, len(features.batch.anchor_row_A))


def rows_and_buckets(plans: list[BatchPlan]) -> list[tuple[int, int, list[int]]]:
    return [(plan.bucket, plan.index, plan.sequence_rows.tolist()) for plan in plans]


def test_the_choice_is_the_seed_s_and_holds_the_number_asked_for_without_repeats() -> None:
    chosen = probe_batches(held_out(), 9, EDGES, BUDGET, seed=3)
    rows = [int(row) for plan in chosen for row in plan.sequence_rows]
    assert len(rows) == len(set(rows)) == 9
    assert rows_and_buckets(chosen) == rows_and_buckets(probe_batches(held_out(), 9, EDGES, BUDGET, seed=3))
    other = probe_batches(held_out(), 9, EDGES, BUDGET, seed=4)
    assert {int(row) for plan in other for row in plan.sequence_rows} != set(rows)


def test_more_sequences_than_there_are_means_all() -> None:
    chosen = probe_batches(held_out(), 500, EDGES, BUDGET, seed=0)
    assert sorted(int(row) for plan in chosen for row in plan.sequence_rows) == list(range(12))


def test_batches_keep_the_budget_and_the_training_buckets_and_what_is_longer_is_in_the_last() -> None:
    lengths, counts = held_out().lengths, {0: 0, 1: 0}
    for plan in probe_batches(held_out(), 12, EDGES, BUDGET, seed=0):
        longest = lengths[plan.sequence_rows].max()
        assert longest * len(plan.sequence_rows) <= BUDGET.budget_tokens
        assert all((lengths[row] > EDGES[0]) == (plan.bucket == 1) for row in plan.sequence_rows)
        assert plan.index == counts[plan.bucket]
        counts[plan.bucket] += 1
    assert counts[0] == 1 and counts[1] > 1


def test_the_same_blocks_are_measured_each_time_and_the_target_is_asked_once() -> None:
    step, _ = a_step()
    target = FakeTarget()
    probe = Probe(batches_of(), target, lambda features: read_sums(step.measure(features)), ALL_HERE)
    first, again = probe(), probe()
    assert first == again and set(first) == {0, 1}
    assert target.calls == len(batches_of())


def test_features_that_do_not_fit_are_made_anew_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    step, _ = a_step()
    kept = Probe(batches_of(), FakeTarget(), lambda features: read_sums(step.measure(features)), ALL_HERE)()
    monkeypatch.setattr(kept_module, "KEPT_BYTES", 1000)
    target = FakeTarget()
    probe = Probe(batches_of(), target, lambda features: read_sums(step.measure(features)), ALL_HERE)
    assert probe() == probe() == kept
    assert len(batches_of()) < target.calls < 2 * len(batches_of()) + 1


def test_sums_are_added_up_by_bucket() -> None:
    batches = batches_of()
    by_bucket = Probe(batches, FakeTarget(), count_anchors, ALL_HERE)()
    for bucket in (0, 1):
        inside = [batch for batch in batches if batch.plan.bucket == bucket]
        assert by_bucket[bucket].anchors == sum(len(batch.anchor_row_A) for batch in inside)
        assert by_bucket[bucket].loss == len(inside)


def trained(n_steps: int, between: Callable[[DrafterStep], object]) -> list[torch.Tensor]:
    """Parameters, gradients and optimizer state after some steps with something between accumulate and finish."""
    step, optimizer = a_step()
    target, batches = FakeTarget(), batches_of(seed=5, n_sequences=4)
    for _ in range(n_steps):
        step.accumulate(target(batches[0]))
        between(step)
        step.finish(10.0)
    step.accumulate(target(batches[0]))
    between(step)
    parameters = list(step.drafter.parameters())
    state = [value for part, _ in optimizer._parts for held in part.state.values() for value in held.values()]
    assert state and all(p.grad is not None and p.grad.any() for p in parameters)
    return [p.detach() for p in parameters] + [p.grad for p in parameters if p.grad is not None] + state


def test_training_does_not_notice_a_probe() -> None:
    def probed(step: DrafterStep) -> object:
        return Probe(batches_of(), FakeTarget(), lambda features: read_sums(step.measure(features)), ALL_HERE)()

    for one, other in zip(trained(3, probed), trained(3, lambda _: None), strict=True):
        assert torch.equal(one, other)


def test_a_probe_draws_no_random_number() -> None:
    step, _ = a_step()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state(legacy=False)
    Probe(batches_of(), FakeTarget(), lambda features: read_sums(step.measure(features)), ALL_HERE)()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert repr(np.random.get_state(legacy=False)) == repr(before[2])


def test_the_hash_is_of_sequences_and_anchors() -> None:
    def sha256(batches: list[TokenBatch]) -> str:
        return Probe(batches, FakeTarget(), count_anchors, ALL_HERE).sha256()

    assert sha256(batches_of()) == sha256(batches_of())
    assert len({sha256(batches_of()), sha256(batches_of(seed=1)), sha256(batches_of(n_sequences=8))}) == 3
    moved = batches_of()
    moved[0].anchor_position_A[0] += 1
    assert sha256(moved) != sha256(batches_of())

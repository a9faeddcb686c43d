"""Invariant 1 (a token's weight does not depend on its company), invariant 2, slicing, division, clipping."""

from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dflash_exp.drafter.loss import Reduction, denominator
from dflash_exp.drafter.passes import GroupedPasses
from dflash_exp.drafter.step import DrafterStep

LENGTHS = [9, 23, 40, 17, 31, 5, 12, 28]
CUTS = {
    "one by one": [[0], [1], [2], [3], [4], [5], [6], [7]],
    "pairs": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "reversed pairs": [[7, 6], [5, 4], [3, 2], [1, 0]],
    "by length": [[5, 0, 6], [3, 1, 7], [4, 2]],
    "all at once": [[3, 1, 4, 0, 5, 7, 2, 6]],
}


def gradient(kit, cut, reduction, padding=0, slots_per_pass=10_000):
    """The gradient of one step over all batches of a cut, divided, and the sums of its batches."""
    drafter = kit.drafter()
    step = kit.step_of(drafter, reduction, slots_per_pass)
    sequences = [kit.sequence(row, n) for row, n in enumerate(LENGTHS)]
    batches = [step.accumulate(kit.batch_of([sequences[i] for i in rows], padding=padding)) for rows in cut]
    step.finish(denominator(reduction, batches, epoch_weight_per_step=50.0))
    return step.optimizer.given, batches


@pytest.mark.parametrize("reduction", [Reduction.epoch, Reduction.step])
@pytest.mark.parametrize("padding", [0, 11])
@pytest.mark.parametrize("cut", ["pairs", "reversed pairs", "by length", "all at once"])
def test_the_same_sequences_cut_padded_or_ordered_otherwise_give_the_same_gradient(kit, reduction, padding, cut):
    expected, one_by_one = gradient(kit, CUTS["one by one"], reduction)
    ours, batches = gradient(kit, CUTS[cut], reduction, padding)
    assert kit.relative_difference(ours, expected) < 1e-12
    for total in ("loss", "correct", "accepted", "weight", "slots", "anchors"):
        left, right = (sum(float(vars(sums)[total]) for sums in each) for each in (batches, one_by_one))
        assert left == pytest.approx(right, rel=1e-12), total


def test_under_epoch_the_sum_over_steps_is_the_same_however_many_batches_a_step_holds(kit):
    sequences = [kit.sequence(row, n) for row, n in enumerate(LENGTHS)]

    def epoch_sum(cut, batches_per_step):
        drafter, total = kit.drafter(), Counter()
        step = kit.step_of(drafter, Reduction.epoch)
        for first in range(0, len(cut), batches_per_step):
            batches = [
                step.accumulate(kit.batch_of([sequences[i] for i in rows])) for rows in cut[first:][:batches_per_step]
            ]
            step.finish(denominator(Reduction.epoch, batches, epoch_weight_per_step=50.0))
            for name, value in step.optimizer.given.items():
                total[name] = value + total[name]
        return dict(total)

    expected = epoch_sum(CUTS["one by one"], 8)
    for cut, batches_per_step in (("one by one", 1), ("reversed pairs", 3), ("by length", 2)):
        assert kit.relative_difference(epoch_sum(CUTS[cut], batches_per_step), expected) < 1e-12


def test_under_batch_the_cut_changes_the_gradient(kit):
    pairs, _ = gradient(kit, CUTS["pairs"], Reduction.batch)
    whole, _ = gradient(kit, CUTS["all at once"], Reduction.batch)
    assert kit.relative_difference(pairs, whole) > 1e-3


def test_under_batch_the_gradient_is_the_mean_of_the_batches_own_means(kit):
    pairs, _ = gradient(kit, CUTS["pairs"], Reduction.batch)
    means = [gradient(kit, [cut], Reduction.step)[0] for cut in CUTS["pairs"]]
    expected = {name: sum(mean[name] for mean in means) / len(means) for name in pairs}
    assert kit.relative_difference(pairs, expected) < 1e-12


def test_a_batchs_rows_and_neighbours_do_not_change_what_a_sequence_is_trained_on(kit):
    one = kit.sequence(4, 31)
    alone = kit.batch_of([one], n_anchors=9).batch
    among = kit.batch_of([kit.sequence(2, 40), one, kit.sequence(5, 5)], n_anchors=9, padding=6).batch
    assert among.anchor_position_A[among.anchor_row_A == 1].tolist() == alone.anchor_position_A.tolist()


def test_gradient_and_loss_equal_those_of_the_dense_oracle(kit):
    drafter = kit.drafter()
    features = kit.batch_of([kit.sequence(row, n) for row, n in enumerate(LENGTHS)])
    sums = kit.step_of(drafter).accumulate(features)
    ours = kit.gradients_of(drafter)
    hidden_ASH, batch, loss = kit.dense_hidden(drafter, features), features.batch, torch.zeros((), dtype=torch.float64)
    for a, (row, position) in enumerate(
        zip(batch.anchor_row_A.tolist(), batch.anchor_position_A.tolist(), strict=True)
    ):
        for k in range(1, 4):
            if position + k < batch.lengths_B[row] and batch.supervised_BT[row, position + k]:
                logits_V = drafter.head_VH @ hidden_ASH[a, k - 1]
                weight = torch.exp(torch.tensor(-(k - 1) / 4.0, dtype=torch.float64))
                loss = loss + weight * F.cross_entropy(logits_V, batch.tokens_BT[row, position + k])
    loss.backward()
    assert float(sums.loss) == pytest.approx(loss.item(), rel=1e-12)
    assert kit.relative_difference(ours, kit.gradients_of(drafter)) < 1e-12


@pytest.mark.parametrize("slots_per_pass", [4, 12, 72, 100])
def test_slicing_a_batch_changes_nothing(kit, slots_per_pass):
    whole, whole_sums = gradient(kit, CUTS["by length"], Reduction.epoch)
    sliced, sliced_sums = gradient(kit, CUTS["by length"], Reduction.epoch, slots_per_pass=slots_per_pass)
    assert kit.relative_difference(sliced, whole) < 1e-12
    assert [int(s.accepted) for s in sliced_sums] == [int(s.accepted) for s in whole_sums]


def test_measuring_gives_the_sums_of_training_and_no_gradient(kit):
    drafter, features = kit.drafter(), kit.batch_of([kit.sequence(1, 30), kit.sequence(2, 21)])
    step = kit.step_of(drafter, slots_per_pass=24)
    measured = step.measure(features)
    assert all(p.grad is None or not p.grad.any() for p in drafter.parameters()) and not measured.loss.requires_grad
    assert vars(measured) == vars(step.accumulate(features))


@pytest.mark.parametrize("slots_per_pass", [4, 24, 10_000])
def test_measured_one_by_one_the_sequences_of_a_batch_cost_what_they_cost_alone(kit, slots_per_pass):
    sequences = [kit.sequence(row, n) for row, n in enumerate((30, 4, 21))]  # the second has no anchor
    step = kit.step_of(kit.drafter(), slots_per_pass=slots_per_pass)
    each, whole = step.measure_each(kit.batch_of(sequences, padding=3)), step.measure(kit.batch_of(sequences))
    assert [own.anchors for own in each] == [20, 0, 14]
    for own, sequence in zip(each, sequences, strict=True):
        alone = step.measure(kit.batch_of([sequence]))
        assert float(own.loss) == pytest.approx(float(alone.loss), rel=1e-12)
        assert (own.weight, own.slots) == (pytest.approx(alone.weight, rel=1e-12), alone.slots)
    assert sum(float(own.loss) for own in each) == pytest.approx(float(whole.loss), rel=1e-12)
    assert sum(int(own.accepted) for own in each) == int(whole.accepted)


def test_a_batch_without_anchors_adds_nothing(kit):
    drafter, features = kit.drafter(), kit.batch_of([kit.sequence(1, 30)])
    none = torch.zeros(0, dtype=torch.int64)
    features = replace(features, batch=replace(features.batch, anchor_row_A=none, anchor_position_A=none))
    step = kit.step_of(drafter)
    for sums in (step.accumulate(features), step.measure(features), *step.measure_each(features)):
        assert (float(sums.loss), sums.weight, sums.slots, sums.anchors) == (0.0, 0.0, 0, 0)
    assert step.finish(0.0).grad_norm == 0.0 and all(p.grad is None or not p.grad.any() for p in drafter.parameters())


@dataclass
class Descent:
    """Plain gradient descent at rate .1 that remembers the gradient it was given."""

    drafter: nn.Module
    norm: float = 0.0

    def step(self) -> None:
        trained = [(p, p.grad) for p in self.drafter.parameters() if p.grad is not None]
        self.norm = float(torch.stack([gradient.norm() for _, gradient in trained]).norm())
        with torch.no_grad():
            for parameter, gradient in trained:
                parameter.sub_(gradient, alpha=0.1)


@pytest.mark.parametrize(("share", "clipped"), [(0.5, True), (2.0, False)])
def test_the_norm_is_that_before_the_clip_and_the_update_sees_the_clipped_one(kit, share, clipped):
    drafter, features = kit.drafter(), kit.batch_of([kit.sequence(1, 30)])
    plain = kit.step_of(drafter)
    plain.accumulate(features)
    norm = plain.finish(10.0).grad_norm
    descent = Descent(drafter)
    step = DrafterStep(drafter, plain.loss, descent, GroupedPasses(1000), max_grad_norm=norm * share)
    step.accumulate(features)
    outcome = step.finish(10.0)
    assert (outcome.grad_norm, outcome.clipped) == (pytest.approx(norm, rel=1e-12), clipped)
    assert descent.norm == pytest.approx(norm * min(share, 1.0), rel=1e-9)
    assert outcome.update_norm == pytest.approx(0.1 * descent.norm, rel=0.1), "from a sample of the larger tensors"
    assert all(p.grad is None or not p.grad.any() for p in drafter.parameters())


def test_a_gradient_that_is_not_finite_stops_before_the_update(kit):
    drafter, features = kit.drafter(), kit.batch_of([kit.sequence(1, 30)])
    features.features_PF[0, 0] = float("nan")
    step = kit.step_of(drafter)
    step.accumulate(features)
    with pytest.raises(FloatingPointError, match="parameters are as before this step"):
        step.finish(10.0)

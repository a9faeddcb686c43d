"""Weights, labels, sums and denominators, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from dflash_exp.drafter import loss as loss_module
from dflash_exp.drafter.layout import locate_anchors
from dflash_exp.drafter.loss import BatchSums, LossConfig, Reduction, block_sums, denominator, head_loss, slot_weights

D = float(np.exp(-1 / 4))


def sums(weight: float) -> BatchSums:
    zero = torch.zeros(())
    return BatchSums(zero, zero, zero, weight, 0, 0)


def test_slot_k_is_labelled_with_the_token_k_after_the_anchor(kit):
    one = kit.sequence(1, 30)
    features = kit.batch_of([kit.sequence(2, 12), one])
    anchors = locate_anchors(features.batch, 4)
    for a, (row, position) in enumerate(
        zip(features.batch.anchor_row_A, features.batch.anchor_position_A, strict=True)
    ):
        if row == 1 and position + 3 < 30:
            assert anchors.token_A[a] == one.tokens_L[position]
            assert anchors.label_AS[a].tolist() == one.tokens_L[position + 1 : position + 4].tolist()


def test_weights_decay_by_slot_and_vanish_in_holes_and_beyond_the_end(kit):
    features = kit.batch_of([kit.sequence(1, 12)], padding=9)
    supervised_BT = torch.zeros(1, 21, dtype=torch.bool)
    supervised_BT[0, [4, 5, 7, 10, 11, 12, 13]] = True  # 12 and 13 are padding: a lie that must not count
    batch = replace(
        features.batch,
        supervised_BT=supervised_BT,
        anchor_row_A=torch.zeros(2, dtype=torch.int64),
        anchor_position_A=torch.tensor([4, 10]),
    )
    weights = slot_weights(locate_anchors(batch, 4).supervised_AS, gamma=4.0)
    assert weights.flatten().tolist() == pytest.approx([1.0, 0.0, D * D, 1.0, 0.0, 0.0], rel=1e-14)


def test_sums_of_two_blocks_worked_out_by_hand():
    head_VH = torch.eye(4, dtype=torch.float64)
    label_AS = torch.tensor([[0, 1, 2], [3, 0, 1]])
    hidden_ASH = F.one_hot(torch.tensor([[0, 1, 3], [0, 0, 1]]), 4).double() * 2  # predicts 0 1 3 | 0 0 1
    supervised_AS = torch.tensor([[True, True, True], [True, True, False]])
    out = block_sums(hidden_ASH, head_VH, label_AS, supervised_AS, gamma=4.0)
    right, wrong = np.log(1 + 3 * np.exp(-2)), np.log(1 + 3 * np.exp(-2)) + 2
    assert float(out.loss) == pytest.approx(right + D * right + D * D * wrong + wrong + D * right, rel=1e-14)
    assert out.weight == pytest.approx(1 + D + D * D + 1 + D, rel=1e-14)
    assert (int(out.correct), out.slots, out.anchors) == (3, 5, 2)
    assert int(out.accepted) == 2  # two of the first block, none of the second: its first slot is wrong


def test_a_prefix_ends_where_supervision_does():
    head_VH = torch.eye(4, dtype=torch.float64)
    hidden_ASH = F.one_hot(torch.tensor([[0, 1, 2]]), 4).double()
    out = block_sums(hidden_ASH, head_VH, torch.tensor([[0, 1, 2]]), torch.tensor([[True, False, True]]), gamma=4.0)
    assert (int(out.correct), int(out.accepted)) == (2, 1)


@pytest.mark.parametrize("chunk", [1, 40, 10_000])
def test_the_chunked_head_equals_whole_logits(monkeypatch, chunk):
    monkeypatch.setattr(loss_module, "CHUNK_LOGITS", chunk)
    monkeypatch.setattr(loss_module, "CHUNK_ROWS", 1)
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(13, 6, dtype=torch.float64, generator=draw).requires_grad_()
    head = torch.randn(11, 6, dtype=torch.float64, generator=draw)
    label, weight = torch.randint(0, 11, (13,), generator=draw), torch.rand(13, dtype=torch.float64, generator=draw)
    rows = head_loss(hidden, head, label, weight)
    (3 * rows.loss).backward()
    ours, hidden.grad = hidden.grad, None
    whole = (F.cross_entropy(F.linear(hidden, head), label, reduction="none") * weight).sum()
    (3 * whole).backward()
    assert ours is not None and hidden.grad is not None
    torch.testing.assert_close(rows.loss, whole, atol=0, rtol=1e-13)
    torch.testing.assert_close(ours, hidden.grad, atol=1e-13, rtol=0)
    assert rows.correct_N.tolist() == (F.linear(hidden, head).argmax(-1) == label).tolist()


def test_the_loss_of_a_bf16_drafter_is_summed_in_fp32():
    hidden_ASH = torch.randn(300, 3, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    head_VH = torch.randn(9, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    label_AS, everywhere = torch.zeros(300, 3, dtype=torch.int64), torch.ones(300, 3, dtype=torch.bool)
    out = block_sums(hidden_ASH, head_VH, label_AS, everywhere, gamma=4.0)
    exact = F.cross_entropy(F.linear(hidden_ASH, head_VH).double().flatten(0, 1), label_AS.flatten(), reduction="none")
    expected = float((exact.view(300, 3) * slot_weights(everywhere, 4.0)).sum())
    assert out.loss.dtype is torch.float32
    assert float(out.loss) == pytest.approx(expected, rel=1e-5)


def test_each_reduction_divides_by_its_own_denominator():
    batches = [sums(3.0), sums(0.0), sums(5.0)]
    assert denominator(Reduction.epoch, batches, 7.5) == 7.5
    assert denominator(Reduction.step, batches, 7.5) == 8.0
    assert denominator(Reduction.batch, batches, 7.5) == 2.0


def test_gamma_must_be_positive():
    with pytest.raises(ValueError, match=r"^loss\.gamma must be > 0, got 0\.0"):
        LossConfig(Reduction.epoch, gamma=0.0)

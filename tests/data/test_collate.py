"""A batch is padded on the right, and a sequence's anchors do not know its company."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_exp.data.collate import Collator
from dflash_exp.data.prepare import Row, write_store
from dflash_exp.data.store import Conversations, TooLong, read_split
from dflash_exp.messages import BatchPlan, TokenBatch

RESPONSES = (3, 6, 2, 0)


@pytest.fixture
def conversations(tmp_path: Path) -> Conversations:
    rows = [Row(list(range(1, n + 3)), [False] * 2 + [True] * n, "a", "eos") for n in RESPONSES]
    write_store(tmp_path / "store", {"train": rows}, 50)
    return read_split(tmp_path / "store", "train", None, TooLong.error)


def supervised_twice(epoch: int, row: int, supervised: np.ndarray) -> np.ndarray:
    """Every supervised position of the parity that epoch and row give."""
    positions = np.flatnonzero(supervised)
    return positions[positions % 2 == (epoch + row) % 2]


def batch_of(conversations: Conversations, rows: list[int], epoch: int = 0) -> TokenBatch:
    return Collator(conversations, supervised_twice)(BatchPlan(0, epoch, 0, 0, 0, np.array(rows)))


def anchors_by_row(batch: TokenBatch) -> dict[int, list[int]]:
    return {
        int(row): batch.anchor_position_A[batch.anchor_row_A == i].tolist()
        for i, row in enumerate(batch.plan.sequence_rows)
    }


def test_sequences_are_padded_on_the_right_and_their_padding_is_not_supervised(conversations: Conversations) -> None:
    batch = batch_of(conversations, [0, 2, 1])
    assert batch.tokens_BT.dtype == torch.int64 and batch.supervised_BT.dtype == torch.bool
    assert batch.tokens_BT.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0], [1, 2, 3, 4, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8]]
    assert batch.supervised_BT.sum(dim=1).tolist() == [3, 2, 6]
    assert not batch.supervised_BT[0, 5:].any() and not batch.supervised_BT[1, 4:].any()
    assert batch.lengths_B.tolist() == [5, 4, 8]


def test_anchors_carry_the_place_in_the_batch_and_the_position_in_the_sequence(conversations: Conversations) -> None:
    batch = batch_of(conversations, [2, 0])
    assert batch.anchor_row_A.tolist() == [0, 1, 1]
    assert batch.anchor_position_A.tolist() == [2, 2, 4]
    assert batch.anchor_row_A.dtype == batch.anchor_position_A.dtype == torch.int64


def test_a_sequence_s_anchors_are_the_same_in_every_company(conversations: Conversations) -> None:
    alone = {row: anchors_by_row(batch_of(conversations, [row], epoch=3))[row] for row in range(4)}
    for company in ([3, 0, 2, 1], [1, 2], [2, 3, 1]):
        assert anchors_by_row(batch_of(conversations, company, epoch=3)) == {row: alone[row] for row in company}


def test_anchors_follow_the_epoch(conversations: Conversations) -> None:
    assert anchors_by_row(batch_of(conversations, [1], epoch=0)) != anchors_by_row(
        batch_of(conversations, [1], epoch=1)
    )


def test_a_sequence_without_anchors_is_still_in_the_batch(conversations: Conversations) -> None:
    batch = batch_of(conversations, [3])
    assert batch.lengths_B.tolist() == [2]
    assert len(batch.anchor_row_A) == len(batch.anchor_position_A) == 0
    assert batch.anchor_position_A.dtype == torch.int64

"""What was trained, as hashes: two of them do not know the order, one knows nothing else."""

from collections.abc import Iterable

import numpy as np
import torch

from dflash_exp.messages import BatchPlan, TokenBatch
from dflash_exp.trained import TrainedHashes

EMPTY = torch.empty(0, dtype=torch.int64)


def batch(bucket: int, index: int, rows: list[int], anchors: list[int], epoch: int = 0, number: int = 0) -> TokenBatch:
    plan = BatchPlan(number, epoch, number, bucket, index, np.array(rows))
    return TokenBatch(plan, EMPTY, EMPTY, EMPTY, torch.zeros(len(anchors), dtype=torch.int64), torch.tensor(anchors))


def hashes_of(batches: Iterable[TokenBatch]) -> dict[str, str]:
    trained = TrainedHashes()
    for one in batches:
        trained.add(one)
    return trained.hashes()


A, B, C = batch(0, 0, [4, 2], [3, 5]), batch(1, 0, [7], [1]), batch(0, 1, [9], [2])
LATER = batch(0, 0, [4, 2], [3, 5], epoch=1)


def test_batches_and_anchors_hash_the_same_in_any_order_and_the_order_does_not() -> None:
    one, other = hashes_of([A, B, C, LATER]), hashes_of([B, C, A, LATER])
    assert one["trained_batches_sha256"] == other["trained_batches_sha256"]
    assert one["anchors_sha256"] == other["anchors_sha256"]
    assert one["trained_order_sha256"] != other["trained_order_sha256"]


def test_the_order_is_of_buckets_not_of_what_they_hold() -> None:
    assert hashes_of([A, B])["trained_order_sha256"] == hashes_of([C, B])["trained_order_sha256"]


def test_where_a_batch_stood_in_the_plan_is_not_what_it_holds() -> None:
    moved = batch(0, 0, [4, 2], [3, 5], number=17)
    assert hashes_of([moved, B]) == hashes_of([A, B])


def test_another_anchor_changes_the_anchors_hash_alone() -> None:
    one, other = hashes_of([A, B]), hashes_of([batch(0, 0, [4, 2], [3, 6]), B])
    assert [name for name in one if one[name] != other[name]] == ["anchors_sha256"]


def test_other_sequences_or_another_number_of_batches_change_the_batches_hash() -> None:
    whole = hashes_of([A, B, C])["trained_batches_sha256"]
    for other in ([batch(0, 0, [4, 3], [3, 5]), B, C], [batch(0, 0, [2, 4], [3, 5]), B, C], [A, B], [A, A, B, C]):
        assert hashes_of(other)["trained_batches_sha256"] != whole


def test_the_epoch_counts() -> None:
    assert hashes_of([A, LATER]) != hashes_of([A, A])
    assert hashes_of([A, LATER])["trained_order_sha256"] != hashes_of([LATER, A])["trained_order_sha256"]

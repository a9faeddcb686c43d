"""What ranks tell one another once a step: every batch's sums, exactly, whoever trained it."""

import math
from collections.abc import Set
from dataclasses import dataclass, replace
from threading import Barrier, Thread

import pytest
import torch
from torch import Tensor, nn

from dflash_exp.drafter.gradient import FlatGradient
from dflash_exp.drafter.loss import BatchSums
from dflash_exp.messages import LossSums
from dflash_exp.pipeline.meeting import Meeting, OwnBatch, Told, checksum_of, room
from dflash_exp.ranks import Alone

WEIGHT = 116.06978661478331
"""More digits than fp32 has."""


class Table:
    """Ranks that are threads of this process, and sum what they bring."""

    def __init__(self, n_ranks: int) -> None:
        self.n_ranks = n_ranks
        self.brought: list[Tensor | None] = [None] * n_ranks
        self.barrier = Barrier(n_ranks)

    def place(self, rank: int) -> "Seat":
        return Seat(self, rank)


@dataclass(frozen=True)
class Seat:
    table: Table
    rank: int

    def add_up(self, flat: Tensor) -> None:
        self.table.brought[self.rank] = flat.clone()
        self.table.barrier.wait(timeout=20)
        flat.copy_(torch.stack([one for one in self.table.brought if one is not None]).sum(0))
        self.table.barrier.wait(timeout=20)


def gradient(n_batches: int, n_ranks: int, dtype: torch.dtype = torch.float32) -> FlatGradient:
    parameters = [nn.Parameter(torch.ones(2, 3, dtype=dtype)), nn.Parameter(torch.ones(4, dtype=dtype))]
    return FlatGradient(parameters, room(n_batches, n_ranks))


def own(k: int, weight: float = WEIGHT) -> OwnBatch:
    sums = BatchSums(torch.tensor(1.1 * k), torch.tensor(3 * k), torch.tensor(k), weight, slots=5 * k, anchors=2 * k)
    return OwnBatch(sums, tokens=100 * k, padded_tokens=128 * k)


def held(
    dealt: list[list[int]], stops: Set[int] = frozenset(), checksums: list[int] | None = None
) -> list[Told | RuntimeError]:
    """What every rank is told at a meeting to which rank r brings the batches `dealt[r]` of a step of four."""
    table, told = Table(len(dealt)), dict[int, Told | RuntimeError]()

    def come(rank: int) -> None:
        meeting = Meeting(gradient(4, len(dealt)), table.place(rank), 4)
        checksum = None if checksums is None else checksums[rank]
        n_batches = 1 + max(place for places in dealt for place in places)
        try:
            told[rank] = meeting.hold({i: own(i + 1) for i in dealt[rank]}, n_batches, rank in stops, checksum)
        except RuntimeError as error:
            told[rank] = error

    threads = [Thread(target=come, args=(rank,)) for rank in range(len(dealt))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [told[rank] for rank in range(len(dealt))]


@pytest.mark.parametrize("dealt", [[[0, 1, 2, 3]], [[3, 0], [1, 2]], [[], [0, 1, 2, 3], []], [[2], [0], [3], [1]]])
def test_all_ranks_know_every_batch_exactly_whoever_trained_it(dealt: list[list[int]]) -> None:
    for told in held(dealt):
        assert isinstance(told, Told)
        assert [batch.tokens for batch in told.batches] == [100, 200, 300, 400]
        assert [batch.padded_tokens for batch in told.batches] == [128, 256, 384, 512]
        for k, batch in enumerate(told.batches, start=1):
            assert batch.sums.weight == pytest.approx(WEIGHT, rel=1e-14)
            loss = float(torch.tensor(1.1 * k))
            assert replace(batch.sums, weight=0.0) == LossSums(loss, 0.0, 3 * k, 5 * k, k, 2 * k)
        assert not told.stop


def test_gradients_are_added_up_and_the_parameters_own_views_see_the_sum() -> None:
    table, sums = Table(2), [gradient(1, 2) for _ in range(2)]

    def come(rank: int) -> None:
        sums[rank].gradient.fill_(10.0**rank)
        Meeting(sums[rank], table.place(rank), 1).hold({0: own(1)} if rank == 0 else {}, 1, False)

    threads = [Thread(target=come, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in sums:
        assert one.gradient.tolist() == [11.0] * 10 and float(one.norm()) == pytest.approx(11 * math.sqrt(10))


def test_a_step_that_is_short_has_no_more_batches_than_it_has() -> None:
    (told,) = held([[0, 1]])
    assert isinstance(told, Told) and len(told.batches) == 2


@pytest.mark.parametrize("stops", [{0}, {1}, {0, 1}])
def test_one_rank_that_is_asked_to_stop_is_enough(stops: set[int]) -> None:
    assert all(isinstance(told, Told) and told.stop for told in held([[0, 1], [2, 3]], stops))


@pytest.mark.parametrize("dealt", [[[0, 1], [1, 2, 3]], [[0, 2], [3]]])
def test_a_batch_that_two_ranks_or_none_have_trained_is_no_step(dealt: list[list[int]]) -> None:
    for told in held(dealt):
        assert isinstance(told, RuntimeError) and "batch 1 by" in str(told)


def test_ranks_whose_parameters_differ_end_the_run() -> None:
    assert all(isinstance(told, Told) for told in held([[0], [1]], checksums=[7, 7]))
    for told in held([[0], [1]], checksums=[7, 8]):
        assert isinstance(told, RuntimeError) and "checksums [7, 8]" in str(told)


def test_a_checksum_changes_with_the_last_bit_of_any_parameter() -> None:
    for dtype in (torch.float32, torch.float64):
        parameters = [torch.full((3,), 0.1, dtype=dtype), torch.ones(2, dtype=dtype)]
        before = checksum_of(parameters)
        assert before == checksum_of([one.clone() for one in parameters]) and 0 <= before < 2**24
        parameters[1][1] = torch.nextafter(parameters[1][1], torch.tensor(2.0, dtype=dtype))
        assert checksum_of(parameters) != before


def test_a_loss_that_is_no_number_stays_in_its_own_row() -> None:
    meeting = Meeting(gradient(2, 1), Alone(), 2)
    bad = OwnBatch(BatchSums(torch.tensor(math.nan), torch.tensor(0), torch.tensor(0), 1.0, 1, 1), 5, 6)
    told = meeting.hold({0: bad, 1: own(2)}, 2, False)
    assert math.isnan(told.batches[0].sums.loss) and told.batches[1].sums.loss == float(torch.tensor(2.2))

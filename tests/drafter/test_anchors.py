"""Anchors are a pure function of (seed, epoch, sequence id, position)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_exp.drafter.anchors import anchor_hash, candidates, choose_anchors, expected_weight, slot_decay, splitmix64

SUPERVISED = st.lists(st.booleans(), min_size=1, max_size=60).map(np.array)


def test_splitmix64_gives_the_published_stream_of_seed_1234567():
    states = (np.uint64(1234567) + np.arange(5, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    assert splitmix64(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_splitmix64_of_zero_is_the_first_number_of_java_and_c():
    assert splitmix64(np.zeros(1, dtype=np.uint64)).tolist() == [0xE220A8397B1DCDAF]


def test_chosen_anchors_are_these_on_every_platform():
    chosen = choose_anchors(seed=1, epoch=2, sequence_id=3, candidates_C=np.arange(10, 100), n_anchors=6)
    assert chosen.tolist() == [28, 33, 53, 61, 72, 75]


def test_a_candidate_and_the_token_after_it_are_both_supervised():
    assert candidates(np.array([0, 1, 1, 0, 1, 0, 1, 1, 1], dtype=bool)).tolist() == [1, 6, 7]
    assert candidates(np.array([1], dtype=bool)).tolist() == []


@given(SUPERVISED, st.integers(1, 70), st.integers(0, 2**63), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_anchors_are_the_smallest_hashes_in_ascending_order(supervised_L, n_anchors, seed, row):
    positions_C = candidates(supervised_L)
    chosen = choose_anchors(seed, 1, row, positions_C, n_anchors)
    assert len(chosen) == min(n_anchors, len(positions_C))
    assert np.all(np.diff(chosen) > 0) and np.isin(chosen, positions_C).all()
    left = np.setdiff1d(positions_C, chosen)
    if len(left):
        assert anchor_hash(seed, 1, row, chosen).max() < anchor_hash(seed, 1, row, left).min()


@pytest.mark.parametrize("other", [(8, 0, 5), (7, 1, 5), (7, 0, 6)])
def test_seed_epoch_and_sequence_id_each_draw_other_anchors(other):
    positions_C, (seed, epoch, row) = np.arange(200), other
    elsewhere = choose_anchors(seed, epoch, row, positions_C, 20)
    assert choose_anchors(7, 0, 5, positions_C, 20).tolist() != elsewhere.tolist()


def test_more_anchors_keep_those_of_fewer():
    few, many = (set(choose_anchors(7, 0, 5, np.arange(200), n).tolist()) for n in (20, 40))
    assert few < many


def test_a_negative_seed_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^seed must be in \[0, 2\*\*64\), got -1"):
        anchor_hash(-1, 0, 0, np.arange(3))


def test_every_candidate_is_chosen_equally_often_over_epochs():
    counts = np.zeros(20)
    for epoch in range(2000):
        counts[choose_anchors(0, epoch, 1, np.arange(20), 5)] += 1
    assert np.abs(counts / 500 - 1).max() < 0.2


def test_expected_weight_of_a_short_sequence_worked_out_by_hand():
    # Candidates 1, 2, 3 of L = 5, block 3: slots a+1, a+2. Weights 1 + d, 1 + d, 1 (a+2 is past the end).
    d = float(np.exp(-1 / 4))
    n_chosen, weight = expected_weight(np.array([0, 1, 1, 1, 1], dtype=bool), n_anchors=2, block_size=3, gamma=4.0)
    assert n_chosen == 2
    assert weight == pytest.approx(2 * (3 + 2 * d) / 3, rel=1e-14)
    assert expected_weight(np.zeros(9, dtype=bool), 4, 3, 4.0) == (0, 0.0)


def test_expected_weight_is_the_mean_over_epochs():
    supervised_L = np.ones(40, dtype=bool)
    supervised_L[[0, 1, 17, 30, 31]] = False
    ahead = np.concatenate([supervised_L, np.zeros(8, dtype=bool)])
    drawn = [
        sum(
            float(slot_decay(8, 4.0) @ ahead[a + 1 : a + 8])
            for a in choose_anchors(0, e, 1, candidates(supervised_L), 9)
        )
        for e in range(600)
    ]
    assert np.mean(drawn) == pytest.approx(expected_weight(supervised_L, 9, 8, 4.0)[1], rel=0.01)

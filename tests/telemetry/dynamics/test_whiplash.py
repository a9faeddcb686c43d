"""Within a bucket against across: the strata by hand, the interval where there is nothing and where there is."""

import numpy as np
import pytest

from dflash_exp.telemetry.dynamics.whiplash import MIXED, Whiplash, conflict, contrast_of


def test_each_pair_of_buckets_is_held_against_its_own_two() -> None:
    # within: b0 .4, b1 .2, b2 never; across (0, 1): (.1 + .2 + .3) / 3, (0, 2) has no within of b2
    sums = np.array([[0.8, 0.1, 0.9], [0.5, 0.2, 0.0], [0.0, 0.0, 0.0]])
    counts = np.array([[2, 1, 1], [2, 1, 0], [0, 0, 0]])
    assert contrast_of(sums, counts) == pytest.approx(0.3 - 0.2)
    assert contrast_of(np.diag([1.0, 1.0]), np.diag([2, 2])) is None


def whiplash_of(seed: int, conflict_by: float, n: int = 1500) -> Whiplash:
    """Noisy cosines whose size differs by bucket; less by `conflict_by` where the bucket changed."""
    rng, whiplash, last = np.random.default_rng(seed), Whiplash(3, 0), 0
    for bucket in rng.integers(3, size=n).tolist():
        base = (0.05 + 0.1 * bucket + 0.05 + 0.1 * last) / 2
        whiplash.add(bucket, base - conflict_by * (bucket != last) + 0.1 * rng.normal())
        last = bucket
    return whiplash


def test_the_interval_holds_the_truth_though_buckets_differ_in_noise() -> None:
    for truth in (0.0, 0.05):
        held = 0
        for seed in range(40):
            figures = whiplash_of(seed, truth).figures()
            assert figures is not None
            low, high = figures["interval"]
            held += low <= truth <= high
            assert high - low < 0.04
        assert held >= 33, (truth, held)


def test_steps_of_several_buckets_and_the_steps_behind_them_count_for_nothing() -> None:
    whiplash = Whiplash(2, 0)
    for bucket, cosine in [(0, None), (0, 0.5), (MIXED, 9.0), (1, 9.0), (1, 0.3), (0, 0.1), (0, None), (1, 0.2)]:
        whiplash.add(bucket, cosine)
    figures = whiplash.figures()
    assert figures is not None and figures["n_steps"] == 4
    assert figures["contrast"] == pytest.approx(0.4 - 0.15) and figures["within"] == pytest.approx(0.4)
    assert figures["negative_share"] == 0 and Whiplash(2, 0).figures() is None


def test_the_conflict_of_buckets_is_their_gradients_cosines() -> None:
    found = conflict({4: [0.0, 2.0], 1: [3.0, 0.0], 2: [1.0, -1.0]})
    half = 0.5**0.5
    assert found["buckets"] == [1, 2, 4]
    assert np.array(found["cosines"]) == pytest.approx(np.array([[1, half, 0], [half, 1, -half], [0, -half, 1]]))

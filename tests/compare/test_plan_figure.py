"""The figure of a plan: what its curves and shares say is what the order does, and any plan has one."""

import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_exp.compare import plan_shares
from dflash_exp.compare.plan_figure import plan_figure, plan_png
from dflash_exp.plan.diagnosis import diagnose_order, max_prefix_deviation, window_tv
from dflash_exp.plan.interleave import Sequential, Shuffle
from dflash_exp.plan.seeds import Seeds


def ordered(counts: list[int]) -> tuple[np.ndarray, dict[str, object]]:
    order = Shuffle().order(counts, np.random.default_rng(0))
    return order, diagnose_order(order, np.array(counts), Shuffle(), 2, Seeds(0, 0, 0, 0), 0)


@pytest.mark.parametrize("counts", [[1], [0, 3], [1, 0, 2], [0, 7, 0], [90, 11], [200, 400, 1], [3] * 200, [30, 0] * 7])
def test_every_plan_has_a_picture_1200_pixels_wide(counts: list[int]) -> None:
    png = plan_png(*ordered(counts))
    assert png.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", png[16:24])
    assert width == 1200 and 800 < height < 1200


def test_the_picture_is_a_pure_function_of_the_plan() -> None:
    assert plan_png(*ordered([40, 90])) == plan_png(*ordered([40, 90]))


def test_the_head_says_what_the_plan_says() -> None:
    order, document = ordered([40, 90])
    said = " ".join(text.get_text() for text in plan_figure(order, document).texts)
    assert "shuffle" in said and "130 batches in 2 buckets, 65 steps" in said
    assert f"longest run {document['max_run']} (3 is possible)" in said


def test_drawing_leaves_pyplot_alone() -> None:
    code = "import sys, dflash_exp.compare.plan_figure; print('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.integers(1, 30))
def test_a_curve_thinned_out_keeps_the_largest_deviation(counts: list[int], n_pieces: int) -> None:
    order, counted = Shuffle().order(counts, np.random.default_rng(1)), np.array(counts)
    curves = [plan_shares.deviation(own, len(order), n_pieces) for own in plan_shares.slots_by_bucket(order, counted)]
    assert max(max(high.max(), -low.min()) for _, low, high in curves) == pytest.approx(
        max_prefix_deviation(order, counted)
    )
    for at, low, high in curves:
        assert len(at) == len(low) == len(high) and (low <= high).all()
        assert (np.diff(at) >= 0).all() and at[0] == 0 and at[-1] == 1


def test_a_curve_by_hand() -> None:
    at, low, high = plan_shares.deviation(np.array([1, 2]), 4, 9)
    assert at.tolist() == [0, 0.25, 0.5, 0.5, 0.75, 1]
    assert low.tolist() == high.tolist() == [0, -0.5, 0, 0, 0.5, 0]


def test_the_windows_drawn_are_those_that_the_plan_measures() -> None:
    counts = [150, 90, 61]
    order, _ = ordered(counts)
    begins, _ = plan_shares.spread_windows(len(order), 100, 300)
    shares = plan_shares.mix(order, 3, begins, begins + 100)
    tv = np.abs(shares - np.array(counts)[:, None] / len(order)).sum(axis=0) / 2
    measured = window_tv(order, np.array(counts))
    assert measured is not None and tv.mean() == pytest.approx(measured["mean"])


def test_too_many_windows_are_thinned_out_evenly() -> None:
    begins, apart = plan_shares.spread_windows(1099, 100, 4)
    assert begins.tolist() == [0, 300, 600, 900] and apart == 300


def test_a_bucket_drawn_twice_as_often_as_is_fair_has_rate_2() -> None:
    order, counts = np.array([0, 0, 1, 1]), np.array([2, 2, 0])
    rate = plan_shares.relative_rate(order, counts, plan_shares.columns(4, 2))
    np.testing.assert_array_equal(rate, [[2, 0], [0, 2], [np.nan, np.nan]])


def test_batches_are_shared_out_over_the_lengths_of_their_runs() -> None:
    bounds, shares = plan_shares.share_by_run({1: 3, 2: 1, 3: 1, 4: 1, 5: 1})
    assert bounds.tolist() == [1, 2, 4, 8]
    np.testing.assert_allclose(shares, np.array([3, 2, 7, 5]) / 17)


@pytest.mark.parametrize(("counts", "least"), [([5], 5), ([1, 1], 1), ([3, 1], 2), ([2, 1], 1), ([2120, 19581], 10)])
def test_the_longest_run_that_no_order_avoids(counts: list[int], least: int) -> None:
    assert plan_shares.least_longest_run(np.array(counts)) == least


def test_only_lengths_of_runs_that_occur_have_a_row() -> None:
    counts = np.array([20, 1])
    order = Sequential().order(counts, np.random.default_rng(0))
    document = diagnose_order(order, counts, Sequential(), 1, Seeds(0, 0, 0, 0), 0)
    runs = plan_figure(order, document).axes[-1]
    assert [text.get_text() for text in runs.texts] == ["4.8 %", "95.2 %", "1", "17–32"]


def test_the_mix_is_off_by_the_share_of_batches_that_would_have_to_change() -> None:
    order, document = ordered([1200, 1300])
    mix = plan_figure(order, document).axes[2]
    tv = window_tv(order, np.array([1200, 1300]))
    assert tv is not None and mix.get_title(loc="left") == f"The mix of 100 batches, {100 * tv['mean']:.1f} % off"

"""The picture of a loss curve: any curve has one, and it says what plan.json says."""

import struct
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from dflash_exp.compare.loss_figure import ShownCurve, loss_figure, loss_png, mean_bucket, thinned


def shown(counts: list[int], batches_per_step: int = 2, **source: object) -> tuple[ShownCurve, np.ndarray, dict]:
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    loss = 2 + mean_bucket(order, batches_per_step) / len(counts)
    figures = {
        "run": "runs/a", "checkpoint": "step-00000007", "mean": 2.5, "curve_sd": 0.25, "curve_sd_within": 0.125,
        "median_sd": 0.0625, "jumps": 1,
        "per_bucket_mean": [2 + b / len(counts) if count else None for b, count in enumerate(counts)],
    }  # fmt: skip
    document = {"strategy": "shuffle", "seeds": {"order": 3}, "counts": counts, "batches_per_step": batches_per_step}
    return ShownCurve(loss, loss, loss >= loss.max()), order, document | {"loss_from": figures | source}


@pytest.mark.parametrize("counts", [[1], [0, 3], [5, 0, 2], [90, 11], [3000, 4000, 9], [3] * 200])
def test_every_curve_has_a_picture_1200_pixels_wide(counts: list[int]) -> None:
    png = loss_png(*shown(counts))
    assert png.startswith(b"\x89PNG")
    assert struct.unpack(">II", png[16:24]) == (1200, 540)


def test_a_step_without_a_loss_is_left_out() -> None:
    curve, order, document = shown([40, 30])
    curve.loss[3] = curve.median[3] = np.nan
    assert loss_png(curve, order, document).startswith(b"\x89PNG")
    line = loss_figure(curve, order, document).axes[0].lines[-1]
    assert len(np.asarray(line.get_xdata())) == 34 and 4 not in np.asarray(line.get_xdata())


def test_the_head_says_what_the_plan_says() -> None:
    said = " ".join(text.get_text() for text in loss_figure(*shown([40, 30])).texts)
    assert "shuffle: the loss with nothing learned" in said and "at step-00000007, seed 3" in said
    for figure in ("mean 2.500", "SD 0.250", "buckets 0.125", "median 0.0625", "1 jump"):
        assert figure in said
    crowded = loss_figure(*shown([4, 3], jumps=100_002, mean=12.5))
    width, renderer = 1200, FigureCanvasAgg(crowded).get_renderer()
    assert all(text.get_window_extent(renderer).x1 < width for text in crowded.texts)
    assert "1,002 jumps" in " ".join(text.get_text() for text in loss_figure(*shown([4, 3], jumps=1002)).texts)


def test_a_bar_a_bucket_ends_at_its_mean() -> None:
    bars = loss_figure(*shown([40, 0, 30])).axes[1].containers[0]
    ends = [bar.get_x() + bar.get_width() for bar in bars]
    assert ends == pytest.approx([2, 2 + 2 / 3])


def test_a_step_s_bucket_is_the_mean_of_its_batches_the_short_step_too() -> None:
    assert mean_bucket(np.array([0, 3, 1, 1, 5]), 2).tolist() == [1.5, 1.0, 5.0]


def test_what_is_thinned_out_keeps_both_ends() -> None:
    assert thinned(4, 9).tolist() == [0, 1, 2, 3]
    assert thinned(101, 5).tolist() == [0, 25, 50, 75, 100]


def test_drawing_leaves_pyplot_alone() -> None:
    code = "import sys, dflash_exp.compare.loss_figure; print('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"

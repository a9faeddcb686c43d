"""Which figures there are follows from what the runs have; what they show is what the runs recorded."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from dflash_exp.compare.drawing import band, inline, on_grid, png, settle, svg
from dflash_exp.compare.figures import conflict_of, orders_of, pictures
from dflash_exp.compare.report import Report
from tests.compare.sweeps import ANALYSIS, Job, write_jobs
from tests.compare.test_report import jobs, report


def names(found: Report) -> list[str]:
    return [picture.name for picture in pictures(found, {})]


def conflicting(job: Job, cosine: float) -> Job:
    matrix = [[1.0, cosine], [cosine, 1.0]]
    return replace(job, result={"dynamics": {"conflict": {"buckets": [0, 1], "cosines": matrix}}})


def test_the_matrix_of_conflicts_is_drawn_where_runs_recorded_it(tmp_path: Path) -> None:
    without = report(write_jobs(tmp_path / "without", jobs()))
    assert "conflict" not in names(without)
    made = [conflicting(job, 0.1 * job.seed) for job in jobs()]
    held = report(write_jobs(tmp_path / "with", made))
    assert "conflict" in names(held)
    found = conflict_of(held.arms[0])
    assert found is not None and found[1] == [0, 1]
    np.testing.assert_allclose(found[2], [[1, 0.1], [0.1, 1]])  # the mean of 0, 0.1 and 0.2


def test_runs_of_one_bucket_have_no_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.compare.sweeps.N_BUCKETS", 1)
    assert not {"shares", "orders"} & set(names(report(write_jobs(tmp_path, jobs()))))


def test_orders_are_shown_of_one_seed_that_all_arms_have(tmp_path: Path) -> None:
    made = [job for job in jobs() if (job.arm, job.seed) != ("stride_jitter", 0)]
    found = report(write_jobs(tmp_path, made, {**ANALYSIS, "seeds": 2}))
    shown = dict(orders_of(found.arms))
    for arm in found.arms:
        seed_1 = next(run for block, run in arm.runs.items() if block[0] == 1)
        np.testing.assert_array_equal(shown[arm.label], seed_1.order)


def test_a_run_that_is_half_done_does_not_cut_the_curves_of_the_others_short(tmp_path: Path) -> None:
    made = [replace(job, status=None, n_records=10) if job.seed == 2 else job for job in jobs()]
    found = report(write_jobs(tmp_path, made))
    loss = next(picture for picture in pictures(found, {}) if picture.name == "loss")
    assert max(line.get_xdata()[-1] for line in loss.figure.axes[0].lines) == 40_000  # type: ignore[index]


def test_a_band_is_the_interval_of_the_mean_or_the_range_of_two() -> None:
    three = band(np.array([[1.0], [2.0], [3.0]]))
    assert three.mean == 2 and three.high - three.mean == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    two = band(np.array([[1.0], [3.0]]))
    assert (two.low, two.mean, two.high) == (1, 2, 3)
    np.testing.assert_allclose(on_grid([(np.array([0, 10.0]), np.array([0, 1.0]))], np.array([5.0])), [[0.5]])


def test_the_verdict_is_drawn_in_percent_of_the_baseline(tmp_path: Path) -> None:
    made = [Job("shuffle", s, 4.0 + s) for s in range(3)] + [Job("stride_jitter", s, 4.5 + s) for s in range(3)]
    found = report(write_jobs(tmp_path, made))
    drawn = pictures(found, {})[0]
    diamond = [line for line in drawn.figure.axes[0].lines if line.get_marker() == "D"]
    assert drawn.name == "verdict" and diamond[0].get_xdata() == pytest.approx([10.0])  # 0.5 of 5


def test_in_a_page_a_figure_has_the_pages_ink_and_no_size_of_its_own(tmp_path: Path) -> None:
    figure = pictures(report(write_jobs(tmp_path, jobs())), {})[0].figure
    text = svg(figure, "verdict")
    assert text == svg(figure, "verdict") and "#222222" in text
    shown = inline(text, "The differences")
    assert "#222222" not in shown and "var(--ink)" in shown and shown.startswith('<svg role="img"')
    assert 'width="' not in shown[: shown.index(">")]


@pytest.mark.filterwarnings("error")
def test_one_seed_without_decoding_is_drawn_without_a_warning(tmp_path: Path) -> None:
    folder = write_jobs(tmp_path, [job for job in jobs() if job.seed == 0])
    for decoded in folder.glob("*/evaluation.json"):
        decoded.unlink()
    assert "loss" in names(report(folder))


def test_a_long_name_of_an_arm_is_not_cut_off(tmp_path: Path) -> None:
    long = ("interleave=stride_jitter", "drafter.anchors=64", "batches.budget_tokens=1024")
    made = [job if job.arm == "shuffle" else replace(job, overrides=(*long, f"seed={job.seed}")) for job in jobs()]
    for picture in pictures(report(write_jobs(tmp_path, made)), {}):
        settle(picture.figure)
        for text in (text for text in picture.figure.findobj(Text) if isinstance(text, Text) and text.get_text()):
            box = text.get_window_extent()
            inside = box.x0 >= 0 and box.x1 <= picture.figure.bbox.width
            assert inside or "=" not in text.get_text(), (picture.name, text.get_text())


def test_a_picture_keeps_its_resolution_when_it_is_drawn_in_lines_first(tmp_path: Path) -> None:
    figure = settle(pictures(report(write_jobs(tmp_path, jobs())), {})[0].figure)
    before = png(figure)
    svg(figure, "x")
    assert png(figure) == before

"""The figures of `bench plan`: which there are, and the values of those that no clock decides."""

import json
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dflash_exp.bench import plan
from dflash_exp.bench.alone import alone, first_calls_s, peak_memory_bytes
from dflash_exp.bench.corpus import build_epoch, made_up_lengths
from dflash_exp.bench.plan import ONE_SCARCE, STORY, Sizes, padding, show_plan_figures, waiting
from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.config import Config
from dflash_exp.options import group_options
from dflash_exp.plan.cost import batch_costs
from dflash_exp.plan.interleave import Interleave, QuotaRandom, Sequential, Shuffle, option_name

TINY = Sizes((3, 5), (1, 7), sequences=500, aligned_sequences=2000, large_batches=80, large_sequences=900)
STRATEGIES = [Sequential(), QuotaRandom(1.0, no_repeat=True, rotate=True)]


def test_every_figure_is_there_and_as_one_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "first_calls_s", len)  # which another process finds, too, and is no compiler
    embedded = compose(["batches.pool=256"])
    assert show_plan_figures(STRATEGIES, embedded, rounds=2, large=True, as_json=True, sizes=TINY) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rounds"] == 2
    assert [(figure["group"], figure["what"], figure["unit"], figure["target"]) for figure in found["figures"]] == [
        ("an order of 8 batches", "sequential", "ms", 3.0),
        ("an order of 8 batches", "quota_random", "ms", 60.0),
        ("an order of 8 batches", "quota_random, 1 of them in the smallest bucket", "ms", 200.0),
        ("an epoch of 500 lengths", "time", "ms", 50.0),
        ("an order of 80 batches", "sequential", "s", 1.0),
        ("an order of 80 batches", "quota_random", "s", 15.0),
        ("an epoch of 900 lengths, in a process of its own", "time", "s", 10.0),
        ("an epoch of 900 lengths, in a process of its own", "peak of memory", "GB", 2.0),
        ("once a machine", "compiling every kernel", "s", None),
        ("padding of the embedded conversations", "batches.pool=256, batches.budget_tokens=2048", "share", 0.02),
        ("work of 8 ranks that meet every 32 batches", "align=none", "share", None),
        ("work of 8 ranks that meet every 32 batches", "align=cost", "share", None),
        ("work of 8 ranks that meet every 32 batches", "align=lpt", "share", 0.97),
    ]
    assert all(figure["value"] > 0 for figure in found["figures"])


def test_without_large_nothing_large_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "first_calls_s", len)
    monkeypatch.setattr(plan, "alone", lambda measure, *arguments: 1.0 if measure is len else pytest.fail())
    embedded = compose(["batches.pool=256"])
    assert show_plan_figures([Shuffle()], embedded, rounds=1, large=False, as_json=False, sizes=TINY) == 0
    said = capsys.readouterr().out
    assert "an order of 8 batches" in said and "80" not in said


def test_the_counts_are_the_story_s_and_as_many_with_one_bucket_scarce() -> None:
    assert sum(STORY) == sum(ONE_SCARCE) == 46_733
    assert min(ONE_SCARCE) == 20


def test_padding_is_what_tokens_leave_of_the_rectangles() -> None:
    assert padding(compose(["batches.pool=256"])).value == pytest.approx(0.0086918, abs=1e-6)
    assert padding(compose(["batches.pool=0"])).holds is False


def test_ranks_work_for_these_shares_of_their_time() -> None:
    figures = waiting(Sizes())
    assert [figure.value for figure in figures] == pytest.approx([0.681, 0.9065, 0.9736], abs=2e-3)
    assert figures[-1].holds is True


def test_work_as_it_comes_is_the_mean_over_the_largest_load_in_the_drafter() -> None:
    lengths = made_up_lengths(2000)
    epoch = build_epoch(lengths)
    _, drafter = batch_costs(epoch.batches, lengths, np.minimum(512, lengths // 2), 16, plan.QWEN3_4B)
    padded = np.zeros(-(-epoch.n_batches // 32) * 32)
    padded[: epoch.n_batches] = drafter[epoch.drawn]
    loads = padded.reshape(-1, 4, 8).sum(axis=1)  # one batch to each of 8 ranks in turn, four times
    assert waiting(TINY)[0].value == pytest.approx(loads.sum() / (8 * loads.max(axis=1).sum()))


def test_the_corpus_has_the_median_and_the_longest_it_says_and_is_the_same_every_time() -> None:
    lengths = made_up_lengths(200_000)
    assert lengths.dtype == np.int32
    assert lengths.min() >= 16 and lengths.max() == 8192
    assert np.median(lengths) == pytest.approx(1600, rel=0.02)
    assert np.mean(lengths == 8192) == pytest.approx(0.01, rel=0.1)
    np.testing.assert_array_equal(lengths, made_up_lengths(200_000))


def test_memory_measured_alone_is_not_this_process_s() -> None:
    held = np.ones(50_000_000)
    assert peak_memory_bytes() > held.nbytes
    assert alone(peak_memory_bytes) < held.nbytes


@pytest.mark.slow
def test_kernels_compiled_anew_leave_the_ones_that_are_kept_alone() -> None:
    before = os.environ.get("NUMBA_CACHE_DIR")
    assert alone(first_calls_s, [Sequential()]) > 0
    assert os.environ.get("NUMBA_CACHE_DIR") == before


def test_the_verb_measures_every_strategy_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[list[str], int, int, bool, bool, Sizes]] = []

    def note(
        strategies: list[Interleave], embedded: Config, rounds: int, large: bool, as_json: bool, sizes: Sizes
    ) -> int:
        names = [option_name(strategy) for strategy in strategies]
        said.append((names, embedded.batches.pool, rounds, large, as_json, sizes))
        return 0

    fake: Any = ModuleType("fake")
    fake.show_plan_figures, fake.Sizes = note, Sizes
    monkeypatch.setitem(sys.modules, "dflash_exp.bench.plan", fake)
    assert main(["bench", "plan"]) == 0
    assert main(["bench", "plan", "--rounds", "7", "--large", "--json"]) == 0
    names = group_options()["interleave"]
    assert said == [(names, 256, 3, False, False, Sizes()), (names, 256, 7, True, True, Sizes())]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plan", "--items", "5"], "--items must go with bench line, got it with bench plan; leave it out"),
        (["line", "--large"], "--large must go with bench plan, got it with bench line; leave it out"),
        (["plan", "--rounds", "0"], "--rounds must be >= 1, got 0"),
        (["line", "--items", "0"], "--items must be >= 1, got 0"),
        (["plane"], "invalid choice: 'plane'"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1

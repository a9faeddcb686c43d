"""Every figure of a run, by hand."""

from collections.abc import Mapping

import numpy as np
import pytest

from dflash_exp.analysis import METRICS
from dflash_exp.compare.measures import (
    MEASURES,
    OTHERS,
    composition_share,
    device_hours,
    measure,
    padding_share,
    tokens_per_s,
    tokens_to,
    train_loss,
    wait_share,
    whiplash,
)
from dflash_exp.compare.runs import Run


def run_of(
    result: Mapping[str, object] | None = None, config: Mapping[str, object] | None = None, **columns: list[float]
) -> Run:
    held = {name.replace("__", "/"): np.array(values, dtype=float) for name, values in columns.items()}
    n = max((len(values) for values in held.values()), default=0)
    return Run("run", (), config or {}, "finished", None, held, ((0,),) * n, result or {}, {}, {}, {})


def test_tokens_to_a_level_lie_between_two_probes() -> None:
    run = run_of(batch__tokens=[100, 100, 100, 100], probe__loss=[5, np.nan, 3, 2])
    assert tokens_to(run, 4.0) == 200  # half of the way from 100 to 300 tokens
    assert tokens_to(run, 2.5) == 350
    assert tokens_to(run, 5.0) == 100 and tokens_to(run, 1.9) is None


def test_a_curve_that_rises_again_has_reached_what_it_reached() -> None:
    assert tokens_to(run_of(batch__tokens=[100] * 3, probe__loss=[4, 2, 3]), 2.5) == 175


def test_speed_is_tokens_over_time_and_not_the_mean_of_rates() -> None:
    run = run_of(batch__tokens=[100, 300], throughput__tokens_per_s=[100, 100 / 3], pipeline__drafter_wait_s=[0.5, 4.5])
    assert tokens_per_s(run) == pytest.approx(40)  # 400 tokens in 1 + 9 s
    assert wait_share(run) == pytest.approx(0.5)


def test_padding_is_of_all_tokens_that_were_computed() -> None:
    assert padding_share(run_of(batch__tokens=[50, 150], batch__padding_share=[0.5, 0.0])) == pytest.approx(0.2)
    assert padding_share(run_of()) is None and tokens_per_s(run_of()) is None and wait_share(run_of()) is None


def test_the_train_loss_is_the_weighted_mean_of_the_last_tenth() -> None:
    loss, weight = [9.0] * 18 + [1.0, 4.0], [1.0] * 18 + [3.0, 1.0]
    assert train_loss(run_of(train__loss=loss, train__weight=weight)) == pytest.approx(1.75)


def test_device_hours_count_every_device_of_every_rank() -> None:
    topology = {"topology.nodes": 2, "topology.ranks_per_node": 4, "topology.target_devices": 1}
    assert device_hours(run_of({"train_s": 1800.0}, topology)) == 8.0
    assert device_hours(run_of({}, topology)) is None


def test_composition_and_whiplash_are_shown_where_a_run_has_them() -> None:
    run = run_of({"dynamics": {"composition_share": 0.14, "whiplash": {"contrast": 0.02, "within": 0.3}}})
    assert (composition_share(run), whiplash(run)) == (0.14, 0.02)
    for without in ({}, {"dynamics": None}, {"dynamics": {"composition_share": None, "whiplash": None}}):
        assert composition_share(run_of(without)) is None and whiplash(run_of(without)) is None


def test_whatever_a_sweep_can_be_judged_by_has_a_measure() -> None:
    assert {each.name for each in (*MEASURES, *OTHERS)} >= set(METRICS)
    lower = {name for name in METRICS if measure(name).lower_is_better}
    assert lower == {"probe/loss", "train/loss"}

"""Which runs are one arm, and what it is called, follows from what differs."""

from collections.abc import Sequence
from typing import Any

import pytest

from dflash_exp.compare.arms import block_names, block_of, differing, find_arm, group_arms
from dflash_exp.compare.runs import Run
from dflash_exp.config import leaves
from tests.compare.sweeps import Job, configuration


def run_of(arm: str, seed: int, overrides: Sequence[str] = (), /, **config: Any) -> Run:
    held = leaves(configuration(Job(arm, seed, 3.0, config={key.replace("__", "."): v for key, v in config.items()})))
    return Run(f"{arm}-{seed}", tuple(overrides), held, "finished", None, {}, (), {}, {}, {}, {})


def labels(runs: Sequence[Run]) -> list[str]:
    return [arm.label for arm in group_arms(runs)[0]]


def test_seeds_where_a_run_lies_and_how_it_is_watched_are_no_settings() -> None:
    arms, doubles = group_arms([run_of("shuffle", 0), run_of("shuffle", 1, telemetry__wandb={"group": "other"})])
    assert len(arms) == 1 and len(arms[0].runs) == 2 and not doubles


def test_an_arm_is_called_by_what_was_typed_for_it_alone() -> None:
    runs = [
        run_of(arm, seed, [f"interleave={arm}", f"seed={seed}", "sweeps=test", "epochs=1"])
        for arm in ("shuffle", "stride_jitter")
        for seed in (0, 1)
    ]
    assert labels(runs) == ["interleave=shuffle", "interleave=stride_jitter"]


def test_without_what_was_typed_an_arm_is_called_by_what_its_configuration_has_alone() -> None:
    assert labels([run_of("shuffle", 0), run_of("stride_jitter", 0)]) == [
        "interleave=shuffle",
        "interleave=stride_jitter",
    ]
    widths = [run_of("stride_jitter", 0, interleave__jitter_strides=width) for width in (0.0, 0.5)]
    assert labels(widths) == ["interleave.jitter_strides=0.0", "interleave.jitter_strides=0.5"]
    assert labels([run_of("shuffle", 0), run_of("shuffle", 1)]) == ["all runs"]


def test_an_arm_that_nothing_was_typed_for_is_called_by_its_configuration() -> None:
    """The default of a group beside an override of it."""
    runs = [run_of("shuffle", 0, ["interleave=shuffle", "seed=0"]), run_of("stride_jitter", 0, ["seed=0"])]
    assert labels(runs) == ["interleave=shuffle", "interleave=stride_jitter"]


def test_streams_that_were_drawn_anew_at_one_seed_are_arms() -> None:
    runs = [run_of("shuffle", 0, (), **{f"seeds__{name}": draw}) for name in ("order", "init") for draw in (1, 2)]
    arms = group_arms(runs)[0]
    assert [arm.label for arm in arms] == ["seeds.order", "seeds.init"]
    assert [len(arm.runs) for arm in arms] == [2, 2]
    assert block_names([block_of(run) for run in runs]) == ["order 1", "order 2", "init 1", "init 2"]


def test_a_stream_of_its_own_at_every_seed_is_no_arm() -> None:
    runs = [run_of("shuffle", seed, seeds__data=7) for seed in (0, 7)]
    assert labels(runs) == ["all runs"]


def test_a_run_that_is_older_than_a_key_is_of_the_arm_that_has_it_as_null() -> None:
    assert labels([run_of("shuffle", 0), run_of("shuffle", 1, drafter__younger=None)]) == ["all runs"]


def test_only_what_differs_is_listed() -> None:
    runs = [run_of("shuffle", 0), run_of("stride_jitter", 1, interleave__jitter_strides=1.0)]
    assert differing(runs) == ["interleave._target_", "interleave.jitter_strides"]


def test_the_second_run_of_an_arm_and_seed_is_told_apart() -> None:
    arms, doubles = group_arms([run_of("shuffle", 0), run_of("shuffle", 0)])
    assert len(arms[0].runs) == 1 and len(doubles) == 1


def test_an_arm_is_found_by_its_label_by_an_override_or_by_its_configuration() -> None:
    runs = [
        run_of("stride_jitter", 0, [f"interleave.jitter_strides={width}"], interleave__jitter_strides=width)
        for width in (0.5, 1.0)
    ]
    arms = group_arms([*runs, run_of("shuffle", 0, ["interleave=shuffle"])])[0]
    assert find_arm(arms, "interleave.jitter_strides=0.5", "x") is arms[0]
    assert find_arm(arms, "interleave=stride_jitter interleave.jitter_strides=1.0", "x") is arms[1]
    assert find_arm(arms, "interleave=shuffle", "x") is arms[2]
    with pytest.raises(
        ValueError, match=r"got interleave=stride_jitter, which fits 2 of them; the arms are interleave"
    ):
        find_arm(arms, "interleave=stride_jitter", "--baseline")
    with pytest.raises(ValueError, match=r"--baseline must name one of the arms, got x=1, which is none of them"):
        find_arm(arms, "x=1", "--baseline")

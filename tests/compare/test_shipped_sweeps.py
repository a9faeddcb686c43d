"""The arms of every sweep that ships are found from its configurations; the one all are held against is among them."""

from functools import cache

import pytest

from dflash_exp.compare.arms import Arm, find_arm, group_arms
from dflash_exp.compare.runs import Run
from dflash_exp.compose import Job, compose_jobs
from dflash_exp.config import leaves, plain
from dflash_exp.options import group_options

NO_FILES = {"columns": {}, "buckets": (), "result": {}, "evaluation": {}, "plan": {}, "environment": {}}


@cache
def jobs_of(sweep: str) -> list[Job]:
    return compose_jobs([f"sweeps={sweep}"])


def run_of(job: Job, overrides: list[str]) -> Run:
    return Run(str(job.config.run_dir), tuple(overrides), leaves(plain(job.config)), "missing", None, **NO_FILES)


def arms_of(sweep: str, typed: bool) -> tuple[list[Arm], str | None, str | None, int]:
    """Arms, baseline, contrast, planned seeds; with what was typed, and as runs that do not say it."""
    jobs = jobs_of(sweep)
    runs = [run_of(job, job.overrides if typed else []) for job in jobs]
    arms, doubles = group_arms(runs)
    assert doubles == [] and jobs[0].analysis is not None
    return arms, jobs[0].analysis.baseline, jobs[0].analysis.contrast, jobs[0].analysis.seeds


@pytest.mark.parametrize("sweep", group_options()["sweeps"])
def test_a_sweep_has_its_seeds_in_every_arm_and_names_two_of_them(sweep: str) -> None:
    arms, baseline, contrast, n_seeds = arms_of(sweep, typed=True)
    assert len(arms) > 1 and {len(arm.runs) for arm in arms} == {n_seeds}
    if baseline is not None and contrast is not None:
        assert find_arm(arms, baseline, "it").label == baseline and find_arm(arms, contrast, "it").label == contrast


@pytest.mark.parametrize("sweep", ["interleaving", "jitter", "batches_per_step", "bucket_edges"])
def test_its_arms_are_found_without_what_was_typed_too(sweep: str) -> None:
    typed, baseline, *_ = arms_of(sweep, typed=True)
    found, *_ = arms_of(sweep, typed=False)
    assert len(found) == len(typed) and baseline is not None
    assert find_arm(found, baseline, "it").runs.keys() == find_arm(typed, baseline, "it").runs.keys()

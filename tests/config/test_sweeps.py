"""A sweep's file says what it asks and how it will be judged, which is no part of its runs; they go seed by seed."""

from collections import Counter
from pathlib import Path

import pytest

from dflash_exp.analysis import Analysis, DiffersIn
from dflash_exp.cli import main
from dflash_exp.compose import Job, compose, compose_jobs
from dflash_exp.config import identity, plain
from dflash_exp.options import conf_directory, group_options
from dflash_exp.plan.interleave import option_name
from dflash_exp.plan.seeds import named_rng
from dflash_exp.planning import plan_run

SWEEPS = group_options()["sweeps"]
MATCHED_ON_EPOCHS = ("bucket_edges", "token_budget", "batches_per_step")


def number(job: Job) -> int:
    """The index in the name of its directory."""
    return int(Path(job.config.run_dir or "").name.partition("-")[0])


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_sweep_s_file_begins_with_its_question_and_names_two_arms_that_it_has(sweep: str) -> None:
    head = (conf_directory().parent / "sweeps" / f"{sweep}.yaml").read_text("utf-8").partition("\nanalysis:")[0]
    assert "?" in head and all(line.startswith("#") for line in head.splitlines())
    jobs = compose_jobs([f"sweeps={sweep}"])
    (analysis,) = {job.analysis for job in jobs}
    assert analysis is not None
    for arm in (analysis.baseline, analysis.contrast):
        assert arm is None or sum(arm in job.overrides for job in jobs) == analysis.seeds


def test_the_noise_floor_changes_one_seed_at_a_time_eight_times_each() -> None:
    changed = Counter[str]()
    for job in compose_jobs(["sweeps=noise_floor"]):
        seeds = vars(job.config.seeds)
        (name,) = [name for name, seed in seeds.items() if seed != 0]
        changed[name] += 1
    assert changed == {"order": 8, "init": 8, "data": 8}


@pytest.mark.parametrize("sweep", MATCHED_ON_EPOCHS)
def test_arms_that_differ_in_their_steps_see_the_same_epochs_with_the_same_weights(sweep: str) -> None:
    configs = [job.config for job in compose_jobs([f"sweeps={sweep}", "experiment=smoke"])]
    assert {(config.epochs, config.steps, config.tokens, config.loss.reduction.value) for config in configs} == {
        (1, None, None, "epoch")
    }
    assert {(config.optim.lr_scale.value, config.optim.lr_reference_weight) for config in configs} == {("sqrt", 977)}


def test_the_reference_of_those_sweeps_is_what_a_step_of_the_default_run_weighs() -> None:
    assert plan_run(compose([])).planner.epoch(0).weight_per_step == pytest.approx(977, abs=0.5)


ARMS = ("shuffle", "tijdeman", "proportional", "round_robin", "sequential")


def arms_in_order(seeds: str, *more: str) -> dict[int, list[str]]:
    """By seed, the strategies in the order in which their jobs run."""
    found: dict[int, list[str]] = {}
    for job in compose_jobs(["-m", f"interleave={','.join(ARMS)}", f"seed={seeds}", *more]):
        found.setdefault(job.config.seed, []).append(option_name(job.config.interleave))
    return found


def test_jobs_run_seed_by_seed_and_are_numbered_as_hydra_has_them() -> None:
    jobs = compose_jobs(["-m", "interleave=shuffle,tijdeman", "seed=7,2,5"])
    assert [job.config.seed for job in jobs] == [7, 7, 2, 2, 5, 5]
    combinations = [(arm, seed) for arm in ("shuffle", "tijdeman") for seed in (7, 2, 5)]
    for job in jobs:
        assert job.index == number(job) == combinations.index((option_name(job.config.interleave), job.config.seed))


def test_a_seed_s_settings_run_in_an_order_that_the_seed_shuffles_and_the_same_again() -> None:
    orders = arms_in_order("range(4)")
    assert list(orders) == [0, 1, 2, 3] and all(sorted(order) == sorted(ARMS) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) > 1, "no setting has the same place everywhere"
    assert tuple(ARMS) not in {tuple(order) for order in orders.values()}
    by_hand = [ARMS[i] for i in named_rng("settings", 3, 0).permutation(5)]
    assert orders[3] == by_hand and arms_in_order("range(4)") == orders


def test_more_seeds_leave_the_order_of_the_others_as_it_was() -> None:
    few = arms_in_order("1,3")
    assert {seed: order for seed, order in arms_in_order("0,1,2,3,4").items() if seed in few} == few
    assert list(arms_in_order("3,0,1")) == [3, 0, 1]


def test_what_a_sweep_is_judged_by_is_no_part_of_its_runs() -> None:
    (loose,) = compose_jobs(["-m", "interleave=shuffle", "seed=0"])
    first = min(compose_jobs(["sweeps=interleaving", "analysis.margin=0.03"]), key=number)
    assert loose.analysis is None
    assert first.analysis == Analysis(
        "probe/loss", "interleave=shuffle", "interleave=stride_jitter", 0.03, 3, DiffersIn.ORDER
    )
    assert identity(first.config) == identity(loose.config) == identity(compose(["interleave=shuffle"]))
    assert "analysis" not in plain(first.config)


WRONG = {
    "analysis.primary_metric=probe/los": "got probe/los; did you mean `probe/loss`?",
    "analysis.baseline=shuffle": "analysis.baseline must be an override, got shuffle; say 'interleave=shuffle'",
    "analysis.contrast=null": "must be two arms or both null, got interleave=shuffle and None; name two",
    "analysis.contrast='interleave=shuffle'": "must be two arms or both null, got interleave=shuffle and interleave=s",
    "analysis.margin=0": "analysis.margin must be in (0, 1), got 0.0; 0.01 is 1 % of the baseline",
    "analysis.seeds=0": "analysis.seeds must be >= 1, got 0; a verdict needs 3",
    "analysis.seeds=few": "analysis.seeds must be a whole number, got 'few'",
    "analysis.differs_in=ordre": "must be one of order, setting, got 'ordre'; did you mean `order`?",
    "analysis.margn=1": "there is no key `analysis.margn`; did you mean `analysis.margin`?",
    "~analysis.margin": "analysis.margin must be given",
}


@pytest.mark.parametrize(("override", "line"), WRONG.items())
def test_a_wrong_analysis_is_one_line(override: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sweeps=interleaving", override]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1

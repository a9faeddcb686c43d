"""Every file of conf/ and sweeps/ composes to a configuration that passes the door."""

import pytest

from dflash_exp.compose import compose, compose_jobs
from dflash_exp.config import GROUPS, Config
from dflash_exp.options import conf_directory, group_options
from dflash_exp.plan.interleave import option_name

NEEDED = {
    "buckets=fixed": ["buckets.edges=[64,8192]"],
    "data=store": ["data.path=somewhere"],
    "target=hf": ["target.path=somewhere"],
    "experiment=story": ["data.path=somewhere"],
    "experiment=paper_qwen3_4b": ["data.path=somewhere"],
    "experiment=paper_qwen3_8b": ["data.path=somewhere"],
}
"""What an option does not say itself."""

OPTIONS = [f"{group}={option}" for group, options in group_options().items() for option in options]


@pytest.mark.parametrize("choice", OPTIONS)
def test_every_option_of_every_group_composes(choice: str) -> None:
    jobs = compose_jobs([choice, *NEEDED.get(choice, [])])
    assert jobs
    assert all(isinstance(job.config, Config) for job in jobs)


def test_no_arguments_mean_the_embedded_experiment() -> None:
    config = compose([])
    assert (config.name, option_name(config.interleave)) == ("embedded", "stride_jitter")


def test_conf_has_a_folder_for_each_group_of_the_configuration_and_no_other() -> None:
    assert {folder.name for folder in conf_directory().iterdir() if folder.is_dir()} == {*GROUPS, "experiment", "hydra"}


@pytest.mark.parametrize("option", group_options()["interleave"])
def test_a_strategy_goes_by_one_word_as_file_and_as_class(option: str) -> None:
    assert option_name(compose([f"interleave={option}"]).interleave) == option


BUDGETS = [option for option in group_options()["batches"] if option != "fixed_size"]


@pytest.mark.parametrize("option", BUDGETS)
def test_a_token_budget_is_what_its_file_name_says(option: str) -> None:
    thousands = int(option.removeprefix("tokens_").removesuffix("k"))
    budget_tokens = compose([f"batches={option}"]).batches.budget_tokens
    assert budget_tokens is not None and budget_tokens // 1000 == thousands
    assert budget_tokens & (budget_tokens - 1) == 0, "a power of two"


def test_one_seed_sets_all_four_and_each_is_settable_alone() -> None:
    seeds = compose(["seed=3", "seeds.data=7"]).seeds
    assert (seeds.init, seeds.data, seeds.anchors, seeds.order) == (3, 7, 3, 3)


def test_an_experiment_beats_the_root_and_the_command_line_beats_both() -> None:
    assert compose(["experiment=smoke"]).steps == 10
    assert compose(["experiment=smoke", "steps=3"]).steps == 3

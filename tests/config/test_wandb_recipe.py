"""The recipe for W&B Sweeps: what an agent would type is a command of ours."""

from typing import Any

import pytest
from wandb.apis.public.sweeps import _validate_config_and_fill_distribution
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args, load_sweep_config

from dflash_exp.compose import compose_jobs
from dflash_exp.config import Config
from dflash_exp.options import conf_directory, group_options

RECIPES = sorted((conf_directory().parent / "sweeps" / "wandb").glob("*.yaml"))
KNOWN = {"program", "command", "project", "entity", "name", "description", "method", "run_cap", "metric", "parameters"}
"""Top-level keys of a W&B sweep that a recipe of ours may have."""


def recipe_of(path: str) -> dict[str, Any]:
    """A recipe as `wandb sweep` reads it and sends it off."""
    loaded = load_sweep_config(path)
    assert loaded is not None
    return _validate_config_and_fill_distribution(loaded)


def typed_by_the_agent(recipe: dict[str, Any], drawn: dict[str, Any]) -> list[str]:
    """The command of one run, by the client's own substitution, as `wandb_agent.Agent` puts it together."""
    found = create_sweep_command_args({"args": {key: {"value": value} for key, value in drawn.items()}})
    found |= {"program": [recipe["program"]], "env": ["/usr/bin/env"]}
    command: list[str] = []
    for word in create_sweep_command(list(recipe["command"])):
        command += found[word[2:-1]] if word.startswith("${") else [word]
    return command


def draws(recipe: dict[str, Any]) -> list[dict[str, Any]]:
    """Enough draws to have every value and both ends of every range."""
    choices = {}
    for key, parameter in recipe["parameters"].items():
        one = [parameter["value"]] if "value" in parameter else []
        choices[key] = one or parameter.get("values") or [parameter["min"], parameter["max"]]
    n = max(len(values) for values in choices.values())
    return [{key: values[i % len(values)] for key, values in choices.items()} for i in range(n)]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_run_that_w_and_b_can_draw_is_a_command_of_ours(path: Any) -> None:
    recipe = recipe_of(str(path))
    assert set(recipe) <= KNOWN and recipe["method"] in ("random", "grid")
    assert recipe["metric"] == {"name": "probe/loss", "goal": "minimize"}
    configs: list[Config] = []
    for drawn in draws(recipe):
        env, program, verb, *overrides = typed_by_the_agent(recipe, drawn)
        assert (env, program, verb) == ("/usr/bin/env", "dflash-exp", "train")
        assert len(overrides) == len(recipe["parameters"])
        (job,) = compose_jobs(overrides)
        assert not job.in_sweep
        configs.append(job.config)
    assert len(set(map(repr, configs))) == len(configs) > 1, "and what is drawn arrives"


def test_what_is_drawn_is_what_the_run_is_told() -> None:
    (path,) = [path for path in RECIPES if path.stem == "learning_rate"]
    drawn = {"optim.lr": 1e-05, "optim.schedule": "wsd", "evaluate": False, "loss.gamma": 6.25, "seed": 3}
    (job,) = compose_jobs(typed_by_the_agent(recipe_of(str(path)), drawn)[3:])
    config = job.config
    assert (config.optim.lr, config.optim.schedule.value, config.evaluate) == (1e-05, "wsd", False)
    assert (config.loss.gamma, config.seed) == (6.25, 3)


def test_a_recipe_is_no_sweep_of_ours_and_says_on_its_head_what_it_is_for() -> None:
    assert RECIPES and not {path.stem for path in RECIPES} & set(group_options()["sweeps"])
    for path in RECIPES:
        head = path.read_text("utf-8").partition("\nprogram:")[0]
        assert all(line.startswith("#") for line in head.splitlines())
        assert "wandb sweep" in head and "wandb agent" in head and "sweeps=" in head

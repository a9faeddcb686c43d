"""A run that starts from a drafter has its weights at step 0, bit for bit, and says what it says."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash_exp.building import Built, Outside, build
from dflash_exp.compose import compose
from dflash_exp.experiment import run
from dflash_exp.export import drafter_state, find_drafter
from dflash_exp.models import parameters_sha256
from dflash_exp.planning import plan_run
from dflash_exp.published import load_weights
from dflash_exp.ranks import Alone
from dflash_exp.stop import StopSignals
from dflash_exp.suggest import ConfigError
from tests.tiny_drafter import block_logits
from tests.world import World, make_world, result_of

SHORT = ("epochs=null", "steps=2", "evaluate=false", "probe.every_steps=0", "probe.prompts=0")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def trained(world: World) -> Path:
    return world.train("trained", *SHORT)


def built(world: World, *more: str) -> Built:
    config = compose(world.overrides("built", *SHORT, *more))
    return build(config, plan_run(config), 0, Outside(Alone(), print, lambda: False))


def test_step_0_has_the_weights_and_logits_of_the_drafter_that_it_starts_from(world: World, trained: Path) -> None:
    started, random = built(world, f"drafter.init_from={trained}"), built(world)
    expected = random.target.new_drafter(compose([]).drafter.compute_dtype)
    load_weights(expected, find_drafter(trained, None))
    ours, theirs = drafter_state(started.drafter), drafter_state(expected)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    tokens_T = torch.arange(9)
    features_TF = started.target.model.features(tokens_T[None], torch.tensor([9]))
    logits = [block_logits(drafter, features_TF, 9) for drafter in (started.drafter, expected, random.drafter)]
    assert torch.equal(logits[0], logits[1]) and not torch.equal(logits[0], logits[2])


def test_a_run_says_what_it_started_from_and_goes_on_from_that_alone(world: World) -> None:
    source = world.train("source", *SHORT)
    start = f"drafter.init_from={source}"
    started = world.train("started", *SHORT, start)
    assert result_of(started)["init_sha256"] == parameters_sha256(built(world, start).drafter)
    (started / "result.json").unlink()
    weights = find_drafter(source, None) / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(ConfigError, match="differs in init_sha256"):
        world.train("started", *SHORT, start)


@pytest.mark.parametrize(
    "more, line",
    [
        (
            ("drafter.init_from=nowhere", "target.path={bare}"),
            r"^drafter\.init_from=nowhere: PATH must hold",
        ),
        (("drafter.init_from={trained}", "drafter.taps=[0,1]"), r"target_layer_ids must be .* got \(0, 1\), layers"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused_before_anything_is_made(
    world: World, trained: Path, more: tuple[str, ...], line: str
) -> None:
    bare = world.root / "bare"  # a target without weights: a drafter is looked for before they are read
    bare.mkdir(exist_ok=True)
    (bare / "config.json").write_bytes((world.root / "target" / "config.json").read_bytes())
    overrides = world.overrides("refused", *SHORT, *(one.format(trained=trained, bare=bare) for one in more))
    with pytest.raises(ConfigError, match=line) as refused:
        run(compose(overrides), overrides, StopSignals())
    assert "\n" not in str(refused.value) and not (world.root / "refused").exists()

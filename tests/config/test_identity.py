"""A run's identity: what it computes, not where or how it runs."""

import json
import re
from hashlib import sha256

import pytest

from dflash_exp.compose import compose
from dflash_exp.config import OUTSIDE_IDENTITY, SAME_FEATURES, identity, plain, run_directory
from dflash_exp.door import checked

ELSEWHERE = [
    "run_dir=elsewhere", "topology=cpu", "topology.target_workers=3", "evaluate=false", "force=true", "plan.out=x",
    "hydra.sweep.dir=x", "partial=allow", "plan.tokens_per_s=5", "plan.speed_from=x", "plan.loss_from=x",
    "target.cache=disk", "target.cache_bytes=5", "target.cache_dir=x",
]  # fmt: skip
OTHERWISE = [
    "seed=1", "seeds.order=1", "interleave=shuffle", "interleave.jitter_strides=0.5", "batches.budget_tokens=2000",
    "loss.gamma=5", "steps=601", "name=other", "batches_per_step=2", "deterministic=true", "data.max_tokens=99",
    "pipeline.threads.target=1", "optim.lr_reference_weight=900", "drafter.attention=flex",
    "target.mask_token_id=3", "drafter.init_from=there",
]  # fmt: skip


@pytest.mark.parametrize("override", ELSEWHERE)
def test_where_and_how_it_runs_leaves_a_run_the_same(override: str) -> None:
    assert identity(compose([override])) == identity(compose([]))


def test_what_it_computes_makes_another_run() -> None:
    identities = {identity(compose([override])) for override in OTHERWISE}
    assert len(identities - {identity(compose([]))}) == len(OTHERWISE)


def test_a_key_that_came_later_leaves_a_run_the_same_until_it_is_used() -> None:
    values = plain(compose([]))
    assert values["optim"].pop("lr_scale") == "none" and values["optim"].pop("lr_reference_weight") is None
    assert identity(checked(values)) == identity(compose([]))
    for key in (*SAME_FEATURES, "mask_token_id", "forward"):
        del values["target"][key]
    del values["drafter"]["init_from"]
    for key in (*OUTSIDE_IDENTITY, "pipeline"):
        del values[key]
    values |= {"plan": {"counts": None}, "pipeline": {"threads": {"target": None, "drafter": None}}}
    digits = sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:8]
    assert identity(compose([])).endswith(f"-{digits}"), "as it was before there were these keys"


def test_the_way_a_value_is_written_leaves_a_run_the_same() -> None:
    spelt = ["interleave.jitter_strides=1", "interleave=stride_jitter", "optim.lr=2e-2", "seeds.init=0"]
    assert identity(compose(spelt)) == identity(compose([]))


def test_an_identity_is_a_slug_a_seed_and_eight_digits() -> None:
    named = identity(compose(["name=My Run/2", "seed=11", "interleave=shuffle"]))
    assert re.fullmatch(r"my-run-2-shuffle-s11-[0-9a-f]{8}", named)


def test_a_run_lives_under_its_identity_unless_it_is_told_where() -> None:
    config = compose([])
    assert str(run_directory(config)) == f"runs/{identity(config)}"
    assert str(run_directory(compose(["run_dir=here"]))) == "here"

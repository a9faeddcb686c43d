"""What a comparison makes of runs as W&B gives them, and what it says that it cannot know."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dflash_exp import gathered_wandb
from dflash_exp.gathered_wandb import columns_of, gather_group, parts_of, run_of, word_of
from dflash_exp.mirrors import FIGURES, beside
from dflash_exp.suggest import ConfigError
from dflash_exp.telemetry.wandb_account import WandbTrouble
from dflash_exp.telemetry.wandb_runs import MirroredRun, records_of
from tests.compare.sweeps import ANALYSIS, sweep_of

PLACE = {"entity": "me", "project": "dflash", "group": "test"}
SEEDS = {"init": 1, "data": 1, "anchors": 1, "order": 1}
CONFIG: dict[str, Any] = {"seed": 1, "seeds": SEEDS, "run_dir": "runs/test/3-x-s1", "analysis": ANALYSIS}
HASHES = dict.fromkeys(("trained_batches_sha256", "anchors_sha256", "init_sha256", "probe_sha256"), "h")
RESULT = {"status": "finished", **HASHES}
ADDRESS = "wandb:me/dflash/test"


def mirrored(state: str = "finished", result: dict[str, Any] = RESULT, **config: Any) -> MirroredRun:
    records: list[dict[str, float]] = [{"step": 1, "train/loss": 2.0, "batch/buckets": 5}]
    return MirroredRun("id", state, CONFIG | config, {"result": result} if result else {}, records)


def gathered(monkeypatch: pytest.MonkeyPatch, *runs: MirroredRun) -> gathered_wandb.Gathered:
    monkeypatch.setattr(gathered_wandb, "read_group", lambda *_: list(runs))
    return gather_group(ADDRESS)


def test_a_run_is_called_by_its_directory_and_placed_where_it_was_found() -> None:
    run = run_of(mirrored(overrides=["interleave=shuffle"], command=["dflash-exp"], git=None), PLACE)
    assert (run.name, run.word, run.overrides) == ("3-x-s1", "finished", ("interleave=shuffle",))
    assert run.config["telemetry.wandb.group"] == "test" and run.config["seeds.order"] == 1
    assert run.environment == {"command": ["dflash-exp"]} and run.result == RESULT
    assert not [key for key in run.config if key.startswith(("analysis", "overrides", "command"))]


@pytest.mark.parametrize(
    ("state", "result", "word"),
    [
        ("finished", {}, "finished"),
        ("failed", {"status": "stopped"}, "stopped"),
        ("failed", {}, "failed"),
        ("crashed", {}, "stopped"),
        ("running", {"status": "stopped"}, "running"),
        ("preempted", {"status": "stopped"}, "stopped"),
    ],
)
def test_the_run_s_own_word_goes_before_that_of_w_and_b(state: str, result: dict[str, Any], word: str) -> None:
    assert word_of(state, result) == word


def test_steps_sent_twice_are_one_and_media_are_none() -> None:
    rows = [
        {"trainer/step": 2, "a": 1.0, "_runtime": 3},
        {"trainer/step": 1, "a": 4},
        {"trainer/step": 2, "b": 2.0, "evaluation/prompts": {"_type": "table-file"}},
        {"dynamics/jumps": {}},
    ]
    assert records_of(rows) == [{"step": 1, "a": 4}, {"step": 2, "a": 1.0, "b": 2.0}]


def test_a_step_of_several_batches_has_no_buckets_and_the_other_columns_go_on() -> None:
    columns, buckets = columns_of([{"step": 1, "x": 1.0, "batch/buckets": 3}, {"step": 2, "x": 2.0}, {"step": 3}])
    assert buckets == ((3,), (), ()) and "batch/buckets" not in columns
    np.testing.assert_array_equal(columns["x"], [1.0, 2.0, np.nan])


def test_what_w_and_b_does_not_hold_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gathered(monkeypatch, mirrored()).remarks
    assert whole == [
        f"read from {ADDRESS} and not from files, so not known: jobs that have not begun, losses with nothing learned"
    ]
    (older,) = gathered(monkeypatch, mirrored(), mirrored(result={})).remarks
    assert older.endswith("; hashes, tokens and decoding of 1 of 2 runs, mirrored by older code")
    odd = mirrored()
    odd.records.append({"step": 2})
    (several,) = gathered(monkeypatch, odd).remarks
    assert several.endswith("; which buckets a step of several batches is of, so orders")


def test_what_the_sweep_is_judged_by_is_what_all_runs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathered(monkeypatch, mirrored(), mirrored(analysis=None)).analysis == ANALYSIS
    none = gathered(monkeypatch, mirrored(analysis=None))
    assert none.analysis is None and none.remarks[-1].startswith("no run says in W&B what its sweep is judged by")
    two = gathered(monkeypatch, mirrored(), mirrored(analysis={**ANALYSIS, "margin": 0.5}))
    assert two.analysis is None and "judged in different ways" in two.remarks[-1]


def test_runs_are_in_the_order_of_the_sweep_and_others_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"runs/test/{number}-x" for number in (10, 9, 2)]
    pictures = MirroredRun("p", "finished", {}, {}, [])
    found = gathered(monkeypatch, pictures, *(mirrored(run_dir=name) for name in names))
    assert [run.name for run in found.runs] == ["2-x", "9-x", "10-x"]
    with pytest.raises(ConfigError, match="must hold runs of this framework, got 1 others"):
        gathered(monkeypatch, pictures)


@pytest.mark.parametrize("address", ["wandb:", "wandb:test", "wandb:dflash/test", "wandb:me//test"])
def test_a_group_is_named_with_entity_and_project(address: str) -> None:
    with pytest.raises(ConfigError, match=f"wandb:ENTITY/PROJECT/GROUP, got {address}; name all three"):
        parts_of(address)
    assert parts_of("wandb:me/dflash/a/b") == ["me", "dflash", "a/b"]


def test_why_w_and_b_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> list[MirroredRun]:
        raise WandbTrouble("no key; `wandb login` stores one")

    monkeypatch.setattr(gathered_wandb, "read_group", refuse)
    with pytest.raises(ConfigError) as refused:
        gather_group(ADDRESS)
    assert str(refused.value) == f"{ADDRESS} must be a group whose runs W&B shows, got no key; `wandb login` stores one"


def test_a_sweep_s_job_is_mirrored_with_what_its_sweep_says(tmp_path: Path) -> None:
    sweep_dir = sweep_of(tmp_path / "test", {"shuffle": [3.0]})
    run_dir = sweep_dir / "0-test-shuffle-s0"
    plan = dict.fromkeys(FIGURES) | json.loads((run_dir / "plan.json").read_text())
    where = {"git": {"revision": "a"}, "devices": ["H200"], "packages": {"torch": "2"}, "command": ["dflash-exp"]}
    figures, *rest = beside(run_dir, plan, where, ["typed"])
    assert figures["batches_sha256"] == "batches0" and figures["lr_share"] == [1.0] * 4
    typed = ["interleave=shuffle", "seed=0", "sweeps=test"]
    assert rest == [{"revision": "a"}, ["H200"], {"torch": "2"}, ["dflash-exp"], typed, ANALYSIS]
    assert beside(tmp_path / "alone", plan, where, ["typed"])[-2:] == [["typed"], None]
    (sweep_dir / "sweep.json").write_text("{")
    assert beside(run_dir, plan, where, ["typed"])[-2:] == [["typed"], None], "no run fails for it"

"""A run directory is made once, says where the run came from, and is never written over."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from dflash_exp.compose import compose
from dflash_exp.config import defaults
from dflash_exp.run_directory import (
    check_same_inputs,
    check_same_run,
    create,
    environment,
    finished,
    free_directory,
    free_file,
    locked,
    note_session,
    overrides_there,
    place,
    taken,
    write_json,
)


def test_a_new_run_says_what_it_is_before_its_first_step(tmp_path: Path) -> None:
    run_dir = tmp_path
    config, plan = {"name": "τ", "steps": 3, "data": {"path": "x"}}, {"order_sha256": "ab", "edges": [1, 2]}
    create(run_dir, config, ["steps=3", "seed=1"], plan, {"train_sha256": "t"})
    assert sorted(p.name for p in run_dir.iterdir()) == [
        "config.yaml", "inputs.json", "logs", "overrides.yaml", "plan.json",
    ]  # fmt: skip
    assert yaml.safe_load((run_dir / "config.yaml").read_text("utf-8")) == config
    assert list(yaml.safe_load((run_dir / "config.yaml").read_text("utf-8"))) == list(config)
    assert yaml.safe_load((run_dir / "overrides.yaml").read_text()) == ["steps=3", "seed=1"]
    assert json.loads((run_dir / "plan.json").read_text()) == plan


def test_what_was_typed_is_read_back_and_no_run_fails_where_it_cannot_be(tmp_path: Path) -> None:
    create(tmp_path, {}, ["steps=3", "seed=1"], {}, {})
    assert overrides_there(tmp_path) == ["steps=3", "seed=1"]
    for damaged in ("[", "3"):
        (tmp_path / "overrides.yaml").write_text(damaged)
        assert overrides_there(tmp_path) == []
    (tmp_path / "overrides.yaml").unlink()
    assert overrides_there(tmp_path) == []


INPUTS = {"train_sha256": "t", "target_fingerprint": "w"}
PLAN = {"batches_sha256": "b", "order_sha256": "o", "plan_sha256": "p"}


def test_another_configuration_or_plan_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    config = {"seed": 1, "optim": {"lr": 0.1, "betas": [0.9, 0.95]}, "topology": {"device": "cpu"}, "force": False}
    create(tmp_path, config, [], PLAN, INPUTS)
    check_same_run(tmp_path, config | {"topology": {"device": "cuda"}, "force": True}, PLAN, {})
    with pytest.raises(ValueError, match=r"differs in optim\.lr \(0\.1 there, 0\.2 here\); say the same configuration"):
        check_same_run(tmp_path, config | {"optim": {"lr": 0.2, "betas": [0.9, 0.95]}}, PLAN, {})
    with pytest.raises(ValueError, match=r"differs in extra \(None there, 3 here\), seed \(1 there, 2 here\)"):
        check_same_run(tmp_path, config | {"seed": 2, "extra": 3}, PLAN, {})
    with pytest.raises(ValueError, match=r"differs in order alone \(order_sha256\): the data, or the way"):
        check_same_run(tmp_path, config, PLAN | {"order_sha256": "x", "plan_sha256": "y"}, {})
    with pytest.raises(ValueError, match=r"differs in train_sha256: these tokens or weights changed"):
        check_same_inputs(tmp_path, INPUTS | {"train_sha256": "other"})


def test_a_run_that_is_older_than_a_key_had_what_the_key_stands_for_by_default(tmp_path: Path) -> None:
    create(tmp_path, {"seed": 1, "drafter": {"taps": None}}, [], PLAN, INPUTS)
    wanted, since = {"seed": 1, "drafter": {"taps": None, "attention": "grouped"}}, {"drafter.attention": "grouped"}
    check_same_run(tmp_path, wanted, PLAN, since)
    wanted = {"seed": 1, "drafter": {"taps": None, "attention": "flex"}}
    with pytest.raises(ValueError, match=r"differs in drafter\.attention \(grouped there, flex here\)"):
        check_same_run(tmp_path, wanted, PLAN, since)


def test_keys_that_are_newer_than_some_runs_are_those_with_a_default() -> None:
    newer = defaults(compose([]))
    assert newer["drafter.compute_dtype"] == "float32"
    assert newer["partial"] == "refuse" and newer["plan.tokens_per_s"] is None
    assert not {"seed", "drafter.taps", "optim.lr"} & newer.keys()


def test_a_directory_in_use_is_refused_and_free_again_afterwards(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with locked(run_dir, pytest.fail):
        (run_dir / "config.yaml").touch()
        with pytest.raises(ValueError, match="run_dir must not be in use"), locked(run_dir, pytest.fail):
            pass
    with locked(run_dir, pytest.fail):
        pass
    assert (run_dir / "config.yaml").exists()


def test_a_directory_in_which_nothing_was_begun_is_gone_again(tmp_path: Path) -> None:
    with locked(tmp_path / "run", pytest.fail):
        pass
    assert not (tmp_path / "run").exists()


def test_every_session_says_where_it_runs_and_counts_those_before(tmp_path: Path) -> None:
    assert [note_session(tmp_path, {}) for _ in range(3)] == [0, 1, 2]
    names = ["environment-2.json", "environment-3.json", "environment.json"]
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_what_is_no_run_is_taken_and_what_is_one_is_not(tmp_path: Path) -> None:
    assert not taken(tmp_path / "none") and not taken(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert taken(tmp_path)
    (tmp_path / "config.yaml").touch()
    assert not taken(tmp_path)


def test_a_taken_name_gets_the_first_free_number(tmp_path: Path) -> None:
    wanted = tmp_path / "run.v1"
    assert free_directory(wanted) == wanted
    wanted.mkdir()
    assert free_directory(wanted) == tmp_path / "run.v1-2"
    (tmp_path / "run.v1-2").write_text("a file takes a name, too")
    assert free_directory(wanted) == tmp_path / "run.v1-3"


def test_a_file_keeps_its_suffix(tmp_path: Path) -> None:
    wanted = tmp_path / "evaluation.json"
    assert free_file(wanted) == wanted
    wanted.touch()
    (tmp_path / "evaluation-2.json").touch()
    assert free_file(wanted) == tmp_path / "evaluation-3.json"


@pytest.mark.parametrize(("status", "is_finished"), [("finished", True), ("failed", False), ("stopped", False)])
def test_only_a_run_that_ended_as_it_should_is_finished(tmp_path: Path, status: str, is_finished: bool) -> None:
    assert not finished(tmp_path)
    write_json(tmp_path / "result.json", {"status": status})
    assert finished(tmp_path) is is_finished


def test_the_environment_names_command_and_packages_and_no_environment_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "do-not-tell-4711")
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/dflash-exp", "train", "steps=3"])
    found = environment({"init": 3}, {"target": 1})
    assert found["command"] == ["dflash-exp", "train", "steps=3"]
    packages = found["packages"]
    assert isinstance(packages, dict) and packages["torch"].startswith("2.")
    assert found["cpus"] == os.cpu_count()
    assert "do-not-tell-4711" not in json.dumps(found)


def test_the_place_of_a_run_is_the_wanted_one_or_the_first_beside_it_that_is_free_or_unfinished(tmp_path: Path) -> None:
    wanted, second, third = (tmp_path / name for name in ("run", "run-2", "run-3"))
    assert place(wanted, force=False) == place(wanted, force=True) == wanted
    for folder in (wanted, second):
        folder.mkdir()
        (folder / "config.yaml").touch()
    write_json(wanted / "result.json", {"status": "finished"})
    assert place(wanted, force=False) == wanted and place(wanted, force=True) == second
    write_json(second / "result.json", {"status": "finished"})
    assert place(wanted, force=True) == third
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").touch()
    assert place(tmp_path / "notes", force=False) == tmp_path / "notes-2"
    (tmp_path / "file").touch()
    assert place(tmp_path / "file", force=False) == tmp_path / "file-2"


def test_a_place_that_cannot_be_written_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ValueError, match="run_dir must be a directory that can be written"),
        locked(tmp_path / "file" / "run", pytest.fail),
    ):
        pass

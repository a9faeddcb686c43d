"""A run directory is made once, says where the run came from, and is never written over."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from dflash_exp.run_directory import create, environment, finished, free_directory, free_file, write_json


def test_a_new_run_says_what_it_is_before_its_first_step(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "one"
    config, plan = {"name": "τ", "steps": 3, "data": {"path": "x"}}, {"order_sha256": "ab", "edges": [1, 2]}
    create(run_dir, config, ["steps=3", "seed=1"], plan)
    assert sorted(p.name for p in run_dir.iterdir()) == [
        "config.yaml", "environment.json", "logs", "overrides.yaml", "plan.json",
    ]  # fmt: skip
    assert yaml.safe_load((run_dir / "config.yaml").read_text("utf-8")) == config
    assert list(yaml.safe_load((run_dir / "config.yaml").read_text("utf-8"))) == list(config)
    assert yaml.safe_load((run_dir / "overrides.yaml").read_text()) == ["steps=3", "seed=1"]
    assert json.loads((run_dir / "plan.json").read_text()) == plan


def test_a_directory_that_is_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(FileExistsError):
        create(tmp_path, {}, [], {})
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["config.yaml"]


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
    found = environment()
    assert found["command"] == ["dflash-exp", "train", "steps=3"]
    packages = found["packages"]
    assert isinstance(packages, dict) and packages["torch"].startswith("2.")
    assert found["cpus"] == os.cpu_count()
    assert "do-not-tell-4711" not in json.dumps(found)

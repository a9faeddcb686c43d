"""A sweep says what it is before its first job, keeps what it was judged by, and adds only what is new."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dflash_exp.cli import main
from dflash_exp.compose import compose
from dflash_exp.config import Config, identity
from dflash_exp.door import load
from dflash_exp.sweep_directory import Entry, Sweep, names, read_sweep, write_sweep

TWO = ["train", "-m", "interleave=shuffle,tijdeman", "hydra.sweep.dir=s"]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Config]:
    """The configurations that are trained, in an empty current directory, by something that trains nothing."""
    configs: list[Config] = []
    fake: Any = ModuleType("fake")
    fake.start = lambda config, overrides, stop: configs.append(config) or 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "dflash_exp.rank", fake)
    return configs


def held() -> dict[str, Any]:
    return json.loads(Path("s/sweep.json").read_text("utf-8"))


def said(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one line that a command is refused with."""
    capsys.readouterr()
    assert main(arguments) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


def test_a_sweep_writes_what_it_is_and_every_job_s_configuration(trained: list[Config]) -> None:
    assert main([*TWO, "seed=0,1"]) == 0
    sweep = held()
    assert (sweep["group"], sweep["analysis"]) == ("s", None)
    assert sorted(job["overrides"] for job in sweep["jobs"]) == [
        [f"interleave={strategy}", f"seed={seed}"] for strategy in ("shuffle", "tijdeman") for seed in (0, 1)
    ]
    assert [f"s/{job['run_dir']}" for job in sweep["jobs"]] == [config.run_dir for config in trained]
    assert [load(Path(f"s/{job['run_dir']}/submitted/config.yaml")) for job in sweep["jobs"]] == trained


def test_the_same_sweep_again_changes_nothing_and_has_the_same_directories(trained: list[Config]) -> None:
    main([*TWO, "seed=0,1"])
    before = {path: path.stat().st_mtime_ns for path in Path("s").rglob("*")}
    main([*TWO, "seed=0,1"])
    assert trained[4:] == trained[:4]
    assert {path: path.stat().st_mtime_ns for path in Path("s").rglob("*")} == before


def test_more_seeds_add_only_the_new_jobs_numbered_on(trained: list[Config]) -> None:
    main([*TWO, "seed=0,1"])
    first = held()["jobs"]
    main([*TWO, "seed=5,1"])
    jobs = held()["jobs"]
    assert jobs[:4] == first and len(jobs) == 6
    assert {job["run_dir"] for job in jobs[4:]} == {
        f"{4 + i}-{identity(compose([f'interleave={arm}', 'seed=5']))}" for i, arm in enumerate(("shuffle", "tijdeman"))
    }
    again = {config.run_dir for config in trained[4:] if config.seed == 1}
    assert again == {config.run_dir for config in trained[:4] if config.seed == 1}


def test_runs_of_a_sweep_without_sweep_json_keep_their_directories(tmp_path: Path) -> None:
    for name in ("0-a", "4-b", "notes-c", "9-gone-2"):
        (tmp_path / name).mkdir()
    assert names(tmp_path, [("b", []), ("new", []), ("a", [])]) == ["4-b", "10-new", "0-a"]


def test_jobs_of_one_identity_are_told_apart_by_what_was_typed(tmp_path: Path) -> None:
    lockstep, overlapped = ["pipeline=lockstep"], ["pipeline=overlapped"]
    assert names(tmp_path, [("x", lockstep), ("x", overlapped)]) == ["0-x", "1-x"]
    write_sweep(tmp_path, Sweep("g", None, [Entry(lockstep, "0-x"), Entry(overlapped, "1-x")]))
    assert names(tmp_path, [("x", overlapped), ("x", lockstep)]) == ["1-x", "0-x"]
    assert names(tmp_path, [("x", ["seed=0"])]) == ["0-x"]


SMOKE = ["train", "sweeps=bucket_edges", "hydra.sweep.dir=s", "seed=0"]


def test_what_a_sweep_is_judged_by_is_frozen(trained: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMOKE) == 0
    before = Path("s/sweep.json").read_bytes()
    assert held()["analysis"] == {
        "primary_metric": "probe/loss", "baseline": "buckets=single", "contrast": "buckets=quantile", "margin": 0.01,
        "seeds": 3, "differs_in": "setting",
    }  # fmt: skip
    line = said(capsys, [*SMOKE, "analysis.margin=0.02", "analysis.seeds=9"])
    assert "when s began, which differs in margin (0.01 there, 0.02 here), seeds (3 there, 9 here); leave it" in line
    assert Path("s/sweep.json").read_bytes() == before and len(trained) == 4
    assert main(["train", "-m", "buckets=single", "seed=7", "hydra.sweep.dir=s", "epochs=1"]) == 0
    assert held()["analysis"]["margin"] == 0.01 and len(held()["jobs"]) == 5


def test_a_sweep_that_was_begun_without_an_analysis_gets_none(
    trained: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*TWO, "seed=0"])
    assert "when s began, which has none; leave it" in said(capsys, SMOKE)


def test_an_arm_that_no_job_has_is_refused_before_anything_is_written(
    trained: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    line = said(capsys, [*SMOKE, "buckets=single,optimal"])
    assert "got buckets=quantile where no job has it" in line
    assert trained == [] and not Path("s").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"group": "s", "jobs": []}', '{"group": 1, "analysis": null, "jobs": 3}'])
def test_a_damaged_sweep_json_is_one_line(text: str, trained: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    Path("s").mkdir()
    Path("s/sweep.json").write_text(text)
    assert "s/sweep.json must hold group, analysis and jobs, got what cannot be read" in said(capsys, TWO)
    assert trained == []


def test_a_sweep_directory_that_cannot_be_one_is_refused(
    trained: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("s").write_text("a file")
    assert "hydra.sweep.dir must be a directory that can be written, s is not" in said(capsys, TWO)
    assert read_sweep(Path("s")) is None

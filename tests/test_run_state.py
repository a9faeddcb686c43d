"""What state a run is in can be read off its files, whoever wrote them and whatever is missing."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dflash_exp.cli import main
from dflash_exp.run_state import MISSING, find_runs, run_state
from dflash_exp.suggest import ConfigError
from dflash_exp.sweep_directory import Entry, Sweep, write_sweep
from dflash_exp.verbs.logs import follow
from dflash_exp.verbs.status import shown, watch

RECORD = {"step": 3, "throughput/tokens_per_s": 5120.4, "progress/eta_s": 3725.0}


def make(run_dir: Path, n_records: int = 3, **result: object) -> Path:
    """A run of 8 steps of which `n_records` are done; without a result it is as a killed one leaves it."""
    (run_dir / "logs").mkdir(parents=True)
    (run_dir / ".lock").touch()
    (run_dir / "config.yaml").write_text("steps: null\nepochs: 1\n")
    (run_dir / "plan.json").write_text('{"steps_per_epoch": 8}')
    records = [RECORD | {"step": step, "probe/loss": 4 - step / 4} for step in range(1, n_records + 1)]
    (run_dir / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    if result:
        (run_dir / "result.json").write_text(json.dumps(result))
    return run_dir


@contextmanager
def trained_in(run_dir: Path) -> Iterator[None]:
    with (run_dir / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_finished_run_has_its_last_probe_and_its_decoded_tau(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run", 8, status="finished", steps=8, final_probe={"probe/loss": 2.0})
    (run_dir / "evaluation.json").write_text('{"tau_pooled": 2.75}')
    state = run_state(run_dir)
    assert (state.word, state.step, state.n_steps, state.probe_loss, state.tau) == ("finished", 8, 8, 2.0, 2.75)


def test_a_run_whose_lock_is_held_is_running_whatever_it_ended_with_before(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run", status="failed", error="ValueError: x", steps=2)
    with trained_in(run_dir):
        state = run_state(run_dir)
    assert (state.word, state.step, state.n_steps) == ("running", 3, 8)
    assert (state.tokens_per_s, state.eta_s, state.error) == (5120.4, 3725.0, None)
    assert run_state(run_dir).word == "failed"


def test_a_half_written_line_is_not_the_last_record(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "throu')
    assert run_state(run_dir).step == 3


def test_the_last_of_many_records_is_found(tmp_path: Path) -> None:
    assert run_state(make(tmp_path / "run", 5000)).step == 5000


def test_a_run_that_was_stopped_or_killed_stands_where_its_records_end(tmp_path: Path) -> None:
    for run_dir in (make(tmp_path / "killed"), make(tmp_path / "stopped", status="stopped", steps=3)):
        state = run_state(run_dir)
        assert (state.word, state.step, state.n_steps) == ("stopped", 3, 8)


def test_a_failed_run_has_the_last_line_of_its_error(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run", status="failed", steps=3, error="RuntimeError: a\nb\nout of memory in batch 7\n")
    assert run_state(run_dir).error == "out of memory in batch 7"


def test_what_was_never_begun_is_missing(tmp_path: Path) -> None:
    assert run_state(tmp_path / "none") == MISSING
    (tmp_path / ".lock").touch()
    assert run_state(tmp_path) == MISSING
    with trained_in(tmp_path):
        assert run_state(tmp_path).word == "running"


def test_the_length_of_a_run_of_steps_is_known_and_of_several_epochs_is_not(tmp_path: Path) -> None:
    run_dir = make(tmp_path / "run")
    (run_dir / "config.yaml").write_text("steps: 20\nepochs: null\n")
    assert run_state(run_dir).n_steps == 20
    (run_dir / "config.yaml").write_text("steps: null\nepochs: 2\n")
    assert run_state(run_dir).n_steps is None


DAMAGED = {
    "result.json": ("{", "result.json must hold a JSON object"),
    "config.yaml": ("[]", "config.yaml must hold a run's configuration"),
    "metrics.jsonl": ("{\n", "metrics.jsonl must end with a JSON object a line"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_in_one_line_and_hides_no_other_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = DAMAGED[name]
    make(tmp_path / "whole")
    (make(tmp_path / "broken") / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        run_state(tmp_path / "broken")
    assert main(["status", str(tmp_path)]) == 0
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("unreadable") and said in first
    assert (second, last) == ("stopped    whole   at step 3 of 8", "2 runs: 1 unreadable, 1 stopped")


def test_a_damaged_sweep_or_list_of_jobs_hides_no_other_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "whole")
    (make(tmp_path / "alone") / "submitted").mkdir()
    (tmp_path / "alone" / "submitted" / "job.json").write_text("[]")
    (sweep(tmp_path / "odd") / "sweep.json").write_text("{")
    assert main(["status", str(tmp_path)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[:2] for row in rows[:3]] == [
        ["unreadable", "alone"],
        ["unreadable", "odd"],
        ["stopped", "whole"],
    ]
    assert "job.json must hold the run's jobs" in rows[0] and "sweep.json must hold group, analysis and jobs" in rows[1]
    assert main(["cancel", str(tmp_path)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "dflash-exp: nothing runs or waits" and len(said) == 3
    assert said[2].endswith(f"({tmp_path / 'odd'} is left as it is)")


def test_a_result_that_is_no_object_is_named_in_one_line(tmp_path: Path) -> None:
    (make(tmp_path / "run") / "result.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"result\.json must hold a JSON object, got \[1\]; put it back"):
        run_state(tmp_path / "run")


def sweep(folder: Path) -> Path:
    """A sweep of five jobs, one in each state."""
    make(folder / "0-a", 8, status="finished", steps=8, final_probe={"probe/loss": 2.0})
    make(folder / "1-b", status="stopped", steps=3)
    make(folder / "2-c", status="failed", steps=3, error="ValueError: no")
    make(folder / "10-e")
    names = ["0-a", "1-b", "2-c", "3-d", "10-e"]
    write_sweep(folder, Sweep("g", None, [Entry([f"x={name}"], name) for name in names]))
    return folder


def test_status_has_a_line_for_every_job_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sweep(tmp_path / "s")
    with trained_in(folder / "10-e"):
        assert main(["status", str(folder)]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "finished   0-a   8 steps, probe loss 2.000",
            "stopped    1-b   at step 3 of 8",
            "failed     2-c   after step 3 of 8: ValueError: no",
            "missing    3-d",
            "running    10-e  step 3 of 8, 1h02m left, 5,120 tokens/s",
            "5 runs: 1 finished, 1 stopped, 1 failed, 1 missing, 1 running",
        ]


def test_a_folder_s_runs_and_sweeps_are_found_and_what_is_neither_is_not(tmp_path: Path) -> None:
    make(sweep(tmp_path / "runs" / "10-s").parent / "2-alone")
    (tmp_path / "runs" / "notes").mkdir()
    names = [found.run_dir.relative_to(tmp_path / "runs").as_posix() for found in find_runs(tmp_path / "runs")]
    assert names == ["2-alone", "10-s/0-a", "10-s/1-b", "10-s/2-c", "10-s/3-d", "10-s/10-e"]
    assert shown(tmp_path / "runs" / "2-alone")[0].endswith("2-alone  at step 3 of 8\n1 run: 1 stopped")


@pytest.mark.parametrize("verb", ["status", "resume", "logs"])
@pytest.mark.parametrize("folder", ["none", "."])
def test_a_directory_without_runs_is_refused_in_one_line(
    verb: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([verb, folder]) == 2
    said = capsys.readouterr().err
    assert f", got {folder}" in said and said.count("\n") == 1


def test_watching_ends_when_all_are_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make(tmp_path / "run")

    def finish() -> None:
        (run_dir / "result.json").write_text('{"status": "finished", "steps": 8}')

    watch(run_dir, finish)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[::3]] == ["stopped", "finished"]


def test_a_log_gets_the_table_only_when_a_state_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, n_pauses = make(tmp_path / "run"), 0

    def pause() -> None:
        nonlocal n_pauses
        n_pauses += 1

    watch(run_dir, pause, lambda _: n_pauses == 3)
    assert capsys.readouterr().out.count("1 run: 1 stopped") == 1


def test_logs_are_printed_under_their_names_or_one_rank_s_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = make(tmp_path / "run")
    for rank in (10, 2):
        (run_dir / "logs" / f"rank-{rank}.log").write_text(f"I am {rank}\n")
    assert main(["logs", str(run_dir)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"==> {run_dir}/logs/rank-2.log <==", "I am 2", f"==> {run_dir}/logs/rank-10.log <==", "I am 10",
    ]  # fmt: skip
    assert main(["logs", str(run_dir), "--rank", "10", "--follow"]) == 0
    assert capsys.readouterr().out == "I am 10\n"


def test_without_a_log_one_line_says_where_to_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = make(tmp_path / "run")
    (run_dir / "logs" / "stall.txt").touch()
    assert main(["logs", str(run_dir), "--rank", "0"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("dflash-exp: rank 0 has no log") and said.count("\n") == 1
    assert f"{run_dir}/metrics.jsonl" in said and "stall.txt in" in said


def test_a_log_is_followed_until_the_run_is_no_longer_at_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, at_work = tmp_path / "rank-1.log", iter([True, True, False])
    log.write_text("one\n")

    def add() -> None:
        with log.open("a") as file:
            file.write("more\n")

    follow([log], lambda: next(at_work), add)
    assert capsys.readouterr().out == "one\nmore\nmore\n"

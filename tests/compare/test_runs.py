"""What is read of a run's directory, whatever lies there."""

import json
from pathlib import Path

import numpy as np
import pytest

from dflash_exp.compare.runs import Run, read_run
from tests.compare.sweeps import Job, configuration, write_run

JOB = Job("shuffle", 0, 3.0, n_records=20)


def read(run_dir: Path) -> Run:
    return read_run(run_dir, (), configuration(JOB), "finished", None)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", JOB, [])
    return tmp_path / "run"


def test_a_field_is_an_array_with_gaps_where_steps_have_none(run_dir: Path) -> None:
    run = read(run_dir)
    probe = run.column("probe/loss")
    assert len(probe) == 20 and np.isfinite(probe).sum() == 10 and run.last("probe/loss") == pytest.approx(3.0)
    assert np.isnan(run.column("no/such/field")).all() and run.last("no/such/field") is None
    assert run.tokens.tolist() == [1000.0 * step for step in range(1, 21)]
    assert run.step_s.tolist() == [0.5] * 20
    tokens, loss = run.curve("probe/loss")
    assert tokens[0] == 2000 and len(loss) == 10


def test_the_order_is_that_of_the_batches_whatever_a_step_holds(tmp_path: Path) -> None:
    lines = [{"step": 1, "batch/buckets": [2, 0]}, {"step": 2, "batch/buckets": []}, {"step": 3, "batch/buckets": [1]}]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = read(tmp_path)
    assert run.order.tolist() == [2, 0, 1] and len(run.buckets) == 3


def test_a_loss_that_was_not_finite_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"probe/loss": 2.5}\n{"probe/loss": null}\n{"odd": "text"}\n')
    run = read(tmp_path)
    assert run.last("probe/loss") == 2.5 and np.isnan(run.column("odd")).all()


def test_a_line_that_is_being_written_is_left_out(run_dir: Path) -> None:
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 21, "probe/lo')
    assert len(read(run_dir).buckets) == 20


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metrics.jsonl", '{"step": 1}\n{"step": \n', "line 2"),
        ("metrics.jsonl", "[1]\n", "line 1"),
        ("result.json", '{"status"', "result.json"),
        ("plan.json", "[]", "plan.json"),
    ],
)
def test_a_damaged_file_is_named(run_dir: Path, name: str, content: str, said: str) -> None:
    (run_dir / name).write_text(content)
    with pytest.raises(
        ValueError, match=rf"{name} must hold .*{said if said.startswith('line') else ''}.*; put it back"
    ):
        read(run_dir)


def test_a_job_that_was_never_begun_has_nothing(tmp_path: Path) -> None:
    run = read_run(tmp_path / "none", (), configuration(JOB), "missing", None)
    assert not run.finished and run.buckets == () and len(run.order) == 0 and run.last("probe/loss") is None

"""metrics.jsonl: one object a line, whole at once, and never over another run's."""

import json
from pathlib import Path

import pytest

from dflash_exp.messages import StepRecord
from dflash_exp.telemetry.sinks import JsonlSink, read_records


def test_a_record_is_a_line_that_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with JsonlSink(path) as sink:
        for step in (1, 2):
            sink.write(StepRecord(step, 0.123456 * step, {"train/loss": 1.5, "batch/buckets": [2, 0]}))
            lines = path.read_text().splitlines()
            assert len(lines) == step
    assert json.loads(lines[1]) == {"step": 2, "time_s": 0.2469, "train/loss": 1.5, "batch/buckets": [2, 0]}
    assert [record["step"] for record in read_records(path)] == [1, 2]


def test_numbers_come_back_bit_for_bit(tmp_path: Path) -> None:
    values = {"a": 0.1 + 0.2, "b": 1e-300, "c": 2**60, "d": True}
    with JsonlSink(tmp_path / "m.jsonl") as sink:
        sink.write(StepRecord(1, 0.0, values))
    (record,) = read_records(tmp_path / "m.jsonl")
    assert {name: record[name] for name in values} == values


def test_a_file_that_is_there_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("another run's\n")
    with pytest.raises(FileExistsError):
        JsonlSink(path)
    assert path.read_text() == "another run's\n"

"""metrics.jsonl: one object a line, whole at once; later lines are put aside, none is lost to a full disk."""

import errno
import io
import json
from pathlib import Path

import pytest

from dflash_exp.messages import StepRecord
from dflash_exp.telemetry.sinks import JsonlSink, check_holds, discard_after, read_records


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


def test_a_resumed_run_s_records_go_behind_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        with JsonlSink(path) as sink:
            sink.write(StepRecord(step, 0.5, {"train/loss": 2.0}))
            assert sink.n_bytes() == path.stat().st_size
    assert [record["step"] for record in read_records(path)] == [1, 2]


def test_what_stands_behind_a_checkpoint_is_put_aside_each_time_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"one\ntwo\nthr")
    assert discard_after(path, 4) == 2 and path.read_bytes() == b"one\n"
    path.write_bytes(b"one\nagain\n")
    assert discard_after(path, 4) == 1 and path.read_bytes() == b"one\n"
    assert (tmp_path / "metrics.discarded-1.jsonl").read_bytes() == b"two\nthr"
    assert (tmp_path / "metrics.discarded-2.jsonl").read_bytes() == b"again\n"
    assert discard_after(path, 4) == 0 and discard_after(tmp_path / "none.jsonl", 0) == 0


def test_what_a_full_disk_refuses_is_kept_and_written_when_there_is_room(tmp_path: Path) -> None:
    class Disk(io.RawIOBase):
        def __init__(self) -> None:
            self.room, self.held = 10, b""

        def write(self, data: bytes) -> int:  # type: ignore[override]
            if not self.room:
                raise OSError(errno.ENOSPC, "no space left on device")
            taken = data[: self.room]
            self.held, self.room = self.held + taken, self.room - len(taken)
            return len(taken)

    sink, disk = JsonlSink(tmp_path / "metrics.jsonl"), Disk()
    sink._file = disk  # type: ignore[assignment]
    for step in (1, 2):
        sink.write(StepRecord(step, 0.5, {"train/loss": 2.0}))
    assert len(disk.held) == 10
    with pytest.raises(OSError, match="no space"):
        sink.n_bytes()
    disk.room = 10**6
    sink.write(StepRecord(3, 0.5, {}))
    assert [json.loads(line)["step"] for line in disk.held.splitlines()] == [1, 2, 3]


def test_records_that_are_gone_or_cut_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    check_holds(path, 0, "step-00000001")
    with pytest.raises(ValueError, match=r"must hold the 4 bytes of records that step-00000002 .*, got no file; put"):
        check_holds(path, 4, "step-00000002")
    path.write_bytes(b"one")
    with pytest.raises(ValueError, match=r"got 3 bytes; put the file back as it was, or take another run_dir"):
        check_holds(path, 4, "step-00000002")
    path.write_bytes(b"one\n")
    check_holds(path, 4, "step-00000002")


def test_a_line_that_is_no_record_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st')
    with pytest.raises(ValueError, match=r"metrics\.jsonl must hold a JSON object a line"):
        read_records(path)


class FullDisk(io.RawIOBase):
    def write(self, data: bytes) -> int:  # type: ignore[override]
        raise OSError(errno.ENOSPC, "no space left on device")


def test_records_that_cannot_be_written_at_the_end_do_not_take_the_place_of_what_ended_the_run(tmp_path: Path) -> None:
    def ended_by(error: Exception | None) -> None:
        with JsonlSink(tmp_path / "metrics.jsonl") as sink:
            sink._file = FullDisk()  # type: ignore[assignment]
            sink.write(StepRecord(1, 0.5, {}))
            if error is not None:
                raise error

    with pytest.raises(OSError, match="no space"):
        ended_by(None)
    with pytest.raises(ArithmeticError, match="the run's own") as caught:
        ended_by(ArithmeticError("the run's own"))
    assert "the last records could not be written" in caught.value.__notes__[0]

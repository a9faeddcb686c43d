"""Where records go: metrics.jsonl, one JSON object a line, which is the truth."""

import errno
import json
import os
from pathlib import Path

from dflash_exp.messages import StepRecord


class JsonlSink:
    """Appends records; a line reaches the file at once. What a full disk refuses is kept and tried again."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._unwritten = b""

    def write(self, record: StepRecord) -> None:
        """Raises ValueError for a number that JSON does not have (NaN): metrics say None."""
        fields = {"step": record.step, "time_s": round(record.time_s, 4), **record.metrics}
        self._unwritten += json.dumps(fields, allow_nan=False).encode() + b"\n"
        try:
            self._write_out()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def n_bytes(self) -> int:
        """Length of the file, with every record on the disk: what a checkpoint remembers. Raises OSError on a full
        disk."""
        self._write_out()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def _write_out(self) -> None:
        while self._unwritten:
            self._unwritten = self._unwritten[self._file.write(self._unwritten) :]

    def __enter__(self) -> "JsonlSink":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self._write_out()
        except OSError as second:
            if error is None:
                raise
            error.add_note(f"and the last records could not be written: {second}")  # which does not take its place
        finally:
            self._file.close()


def read_records(path: Path) -> list[dict]:
    """The records of a metrics.jsonl, in order. Raises ValueError where a line is none."""
    lines = path.read_bytes().splitlines()
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise ValueError(
            f"{path} must hold a JSON object a line, got what cannot be read ({error}); the run's own command puts "
            "aside what stands behind its newest checkpoint"
        ) from error


def check_holds(path: Path, n_bytes: int, checkpoint: str) -> None:
    """ValueError where the records up to a checkpoint are no longer all there."""
    size = path.stat().st_size if path.is_file() else None
    if (size or 0) < n_bytes:
        got = "no file" if size is None else f"{size:,} bytes"
        raise ValueError(
            f"{path} must hold the {n_bytes:,} bytes of records that {checkpoint} goes on from, got {got}; "
            "put the file back as it was, or take another run_dir"
        )


def discard_after(path: Path, n_bytes: int) -> int:
    """Move what stands behind `n_bytes` to the first free `metrics.discarded-<n>.jsonl`; how many lines that were."""
    if not path.is_file() or path.stat().st_size <= n_bytes:
        return 0
    with path.open("r+b") as file:
        file.seek(n_bytes)
        rest = file.read()
        n = 1
        while (aside := path.with_name(f"{path.stem}.discarded-{n}{path.suffix}")).exists():
            n += 1
        with aside.open("xb") as kept:
            kept.write(rest)
            kept.flush()
            os.fsync(kept.fileno())
        file.truncate(n_bytes)
        os.fsync(file.fileno())
    return len(rest.splitlines())

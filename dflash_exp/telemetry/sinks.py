"""Where records go: metrics.jsonl, one JSON object a line, which is the truth."""

import json
import os
from pathlib import Path

from dflash_exp.messages import StepRecord


class JsonlSink:
    """Appends records; every line reaches the file whole, at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def write(self, record: StepRecord) -> None:
        """Raises ValueError for a number that JSON does not have (NaN): metrics say None."""
        fields = {"step": record.step, "time_s": round(record.time_s, 4), **record.metrics}
        self._file.write(json.dumps(fields, allow_nan=False).encode() + b"\n")
        self._file.flush()

    def n_bytes(self) -> int:
        """Length of the file, with every record on the disk: what a checkpoint remembers."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def __enter__(self) -> "JsonlSink":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_records(path: Path) -> list[dict]:
    """The records of a metrics.jsonl, in order."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


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

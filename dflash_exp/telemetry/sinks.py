"""Where records go: metrics.jsonl, one JSON object a line, which is the truth."""

import json
from pathlib import Path

from dflash_exp.messages import StepRecord


class JsonlSink:
    """Appends records; every line reaches the file whole, at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("x", encoding="utf-8")

    def write(self, record: StepRecord) -> None:
        line = json.dumps({"step": record.step, "time_s": round(record.time_s, 4), **record.metrics})
        self._file.write(line + "\n")
        self._file.flush()

    def __enter__(self) -> "JsonlSink":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_records(path: Path) -> list[dict]:
    """The records of a metrics.jsonl, in order."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

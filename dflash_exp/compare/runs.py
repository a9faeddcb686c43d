"""A run's directory -> what a comparison reads of it, as arrays and plain figures.

In: the directory, what was typed for it, its configuration and its state. Out: `Run`. The records become one float64
array a field, NaN where a step has none: 2,000 records take about 40 ms, most of it JSON. A file that cannot be read is
a ValueError that names it; a last line that is still being written is left out.
"""

# N records

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

PUT_BACK = "put it back, or leave the run out"
BUCKETS = "batch/buckets"
"""The only field of a record that is a list."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run of a comparison."""

    name: str
    """Its directory's."""
    overrides: tuple[str, ...]
    """What was typed for it, as far as it is known."""
    config: Mapping[str, Any]
    """By dotted key."""
    word: str
    """finished, running, stopped, failed or missing."""
    error: str | None
    columns: Mapping[str, np.ndarray]
    """A field of the records -> float64 [N]."""
    buckets: tuple[tuple[int, ...], ...]
    """Of each step's batches."""
    result: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    plan: Mapping[str, Any]
    environment: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """Only such a run counts in a verdict."""
        return self.word == "finished"

    def column(self, field: str) -> np.ndarray:
        """A field of every record, NaN where there is none: float64 [N]."""
        return self.columns.get(field, np.full(len(self.buckets), np.nan))

    def last(self, field: str) -> float | None:
        """The last value that a field has."""
        held = self.column(field)
        known = held[np.isfinite(held)]
        return float(known[-1]) if len(known) else None

    @cached_property
    def tokens(self) -> np.ndarray:
        """Trained after each step: float64 [N]."""
        return np.cumsum(np.nan_to_num(self.column("batch/tokens")))

    @cached_property
    def step_s(self) -> np.ndarray:
        """What each step took, NaN where it is not known: float64 [N]."""
        rate = self.column("throughput/tokens_per_s")
        return np.divide(self.column("batch/tokens"), rate, out=np.full_like(rate, np.nan), where=rate > 0)

    def curve(self, field: str) -> tuple[np.ndarray, np.ndarray]:
        """Tokens trained, and the field, at the steps that have it."""
        held = self.column(field)
        known = np.isfinite(held)
        return self.tokens[known], held[known]

    @cached_property
    def order(self) -> np.ndarray:
        """The bucket of every batch trained, in order: int64."""
        return np.array([bucket for step in self.buckets for bucket in step], dtype=np.int64)


def read_run(run_dir: Path, overrides: tuple[str, ...], config: Mapping[str, Any], word: str, error: str | None) -> Run:
    """What lies in the directory, which may be empty; raises ValueError where a file of it is damaged."""
    columns, buckets = read_records(run_dir / "metrics.jsonl")
    return Run(
        name=run_dir.name,
        overrides=overrides,
        config=config,
        word=word,
        error=error,
        columns=columns,
        buckets=buckets,
        result=_object(run_dir / "result.json"),
        evaluation=_object(run_dir / "evaluation.json"),
        plan=_object(run_dir / "plan.json"),
        environment=_object(run_dir / "environment.json"),
    )


def read_records(path: Path) -> tuple[dict[str, np.ndarray], tuple[tuple[int, ...], ...]]:
    """Every field that holds numbers, by name, and the buckets of each step; nothing where there is no file."""
    records = list(_lines(path))
    fields = {field for record in records for field in record} - {BUCKETS}
    columns = {field: column([record.get(field) for record in records]) for field in fields}
    return columns, tuple(tuple(record.get(BUCKETS, ())) for record in records)


def column(values: list[Any]) -> np.ndarray:
    """A field of every record: float64 [N], NaN where there is none, and where it is no number."""
    try:
        return np.array(values, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError):
        return np.array([value if isinstance(value, int | float) else np.nan for value in values], dtype=np.float64)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    whole = text.split(b"\n")[:-1]
    for number, line in enumerate(whole, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(
                f"{path} must hold a JSON object a line, line {number} is not ({error}); {PUT_BACK}"
            ) from error
        if not isinstance(record, dict):
            raise ValueError(f"{path} must hold a JSON object a line, line {number} is {record!r:.40}; {PUT_BACK}")
        yield record


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, empty where there is none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} must hold a JSON object, got what cannot be read ({error}); {PUT_BACK}") from error
    if not isinstance(held, dict):
        raise ValueError(f"{path} must hold a JSON object, got {held!r:.40}; {PUT_BACK}")
    return held

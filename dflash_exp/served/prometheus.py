"""Prometheus's text format -> samples.

In: what a server answers at /metrics. Out: name, labels and value of every sample; comments, time stamps and lines that
are none are left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """One line; labels as they stand, escapes too."""

    name: str
    labels: dict[str, str]
    value: float


def samples(text: str) -> Iterator[Sample]:
    """In the order of the text."""
    for line in text.splitlines():
        found = SAMPLE.fullmatch(line.strip())
        if found is None:
            continue
        name, labels, value = found.groups()
        try:
            yield Sample(name, dict(LABEL.findall(labels or "")), float(value))
        except ValueError:
            continue

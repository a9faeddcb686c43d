"""The mirror in trackio: a dashboard of this machine's own (`trackio show`), no account and no server.

Needs the extra `trackio`. Like W&B it works on a thread of its own and cannot fail the run. trackio knows runs by
their names, so a run is called by its identity, and goes on under it when it is resumed.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol

from dflash_exp.messages import StepRecord
from dflash_exp.telemetry.background import Background
from dflash_exp.telemetry.mirror import RunLabels, plotted

CLOSE_S = 40.0
"""The client itself gives up after 30."""


class TrackioRun(Protocol):
    """What is asked of trackio's run: the package is optional, so its own type may not be there."""

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def finish(self) -> None: ...


def open_trackio(project: str, labels: RunLabels, say: Callable[[str], None]) -> "TrackioSink":
    """A sink whose client is starting. Raises ValueError where trackio is not installed."""
    if find_spec("trackio") is None:
        raise ValueError(
            "telemetry.trackio needs the package trackio, which is not installed; "
            'pip install "dflash-exp[trackio]", or say telemetry.trackio=false'
        )
    return TrackioSink(project, labels, say)


class TrackioSink:
    """Every method but `close` returns at once; that waits at most `CLOSE_S`."""

    def __init__(self, project: str, labels: RunLabels, say: Callable[[str], None]) -> None:
        self._background = Background(
            "trackio", lambda: import_module("trackio"), lambda: start_run(project, labels), say
        )

    def write(self, record: StepRecord) -> None:
        """One point of every chart."""
        self._background.submit(lambda run: run.log(plotted(record), step=record.step))

    def close(self, status: str) -> None:
        """Store what is left; trackio has no word for how a run ended."""
        self._background.submit(lambda run: run.finish())
        self._background.close(CLOSE_S)


def start_run(project: str, labels: RunLabels) -> TrackioRun:
    """A new run, or the one of this identity."""
    return import_module("trackio").init(
        project=project,
        name=labels.identity,
        group=labels.group,
        config=dict(labels.config),
        resume="allow",
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )

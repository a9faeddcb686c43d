"""The mirror in trackio, with a module of ten lines in its place."""

import sys
from pathlib import Path

import pytest

from dflash_exp.messages import StepRecord
from dflash_exp.telemetry import trackio_sink
from dflash_exp.telemetry.mirror import RunLabels
from dflash_exp.telemetry.trackio_sink import open_trackio

LABELS = RunLabels("abc-s0-01234567", "abc s0", "sweep", "train", [], {"seed": 0})
MODULE = """
calls = []
class Run:
    def log(self, metrics, step): calls.append((step, metrics))
    def finish(self): calls.append("finished")
def init(project, name, group, config, resume, embed, auto_log_gpu, auto_log_cpu):
    calls.append((project, name, group, config, resume))
    return Run()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)


@pytest.mark.usefixtures("module")
def test_records_reach_trackio_under_the_run_s_identity_which_a_resumed_run_keeps() -> None:
    sink = open_trackio("dflash", LABELS, pytest.fail)
    for step in (1, 2):
        sink.write(StepRecord(step, 0.5, {"train/loss": 1.0 / step, "batch/buckets": [1, 2]}))
    sink.close("finished")
    assert sys.modules["trackio"].calls == [
        ("dflash", "abc-s0-01234567", "sweep", {"seed": 0}, "allow"),
        (1, {"time_s": 0.5, "train/loss": 1.0}),
        (2, {"time_s": 0.5, "train/loss": 0.5}),
        "finished",
    ]


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackio_sink, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"telemetry\.trackio .*; pip install \"dflash-exp\[trackio\]\"") as error:
        open_trackio("dflash", LABELS, pytest.fail)
    assert "\n" not in str(error.value)

"""A trace that does not hold all the steps that were asked for says so in one line."""

import json
from pathlib import Path

from dflash_exp.telemetry.trace import Trace


def test_a_whole_trace_is_written_without_a_word(tmp_path: Path) -> None:
    path, said = tmp_path / "trace.json", list[str]()
    trace = Trace(2, 3, path, said.append)
    for n_done in range(5):
        trace(n_done)
    trace.close()
    assert json.loads(path.read_text())["traceEvents"] and said == []


def test_a_run_that_ends_inside_the_trace_says_where_the_trace_ends(tmp_path: Path) -> None:
    path, said = tmp_path / "trace.json", list[str]()
    trace = Trace(2, 5, path, said.append)
    for n_done in range(4):
        trace(n_done)
    trace.close()
    assert path.is_file()
    assert said == [f"the trace of profile.steps=[2,5] ends after step 3, as the run does: {path}"]


def test_a_session_that_begins_behind_the_first_step_says_that_nothing_is_traced(tmp_path: Path) -> None:
    path, said = tmp_path / "trace.json", list[str]()
    trace = Trace(2, 5, path, said.append)
    for n_done in (3, 4, 5, 6):
        trace(n_done)
    trace.close()
    assert not path.exists()
    assert said == ["profile.steps=[2,5] is not traced: this session begins after step 3"]


def test_a_run_that_traces_nothing_says_nothing(tmp_path: Path) -> None:
    said = list[str]()
    trace = Trace(-1, -1, tmp_path / "trace.json", said.append)
    trace(0)
    trace(1)
    trace.close()
    assert said == []

"""W&B when it is not well: a server that refuses, is slow, fails later, or is not there. The run goes on."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import wandb

from dflash_exp.messages import StepRecord
from tests.telemetry.fake_wandb import KEY, FakeWandb
from tests.telemetry.wandb_sessions import (
    HASTY,
    ID,
    MARK,
    files_with_the_key,
    meet,
    offline_files,
    opened,
    session,
)

SLOW_S = 60.0
ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("wandb_client")


@pytest.mark.parametrize(
    ("status", "delay_s", "why"),
    [(401, 0, "401"), (403, 0, "403"), (500, 0, "HTTP|deadline"), (200, SLOW_S, "deadline")],
)
def test_a_server_that_refuses_or_does_not_answer_makes_the_run_an_offline_one(
    status: int, delay_s: float, why: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeWandb(status, delay_s) as server:
        meet(server.url, monkeypatch)
        check_that_the_run_is_offline(run_dir, why)
        assert server.n_requests > 0


def test_a_server_that_is_not_there_makes_the_run_an_offline_one(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeWandb() as gone:
        url = gone.url
    meet(url, monkeypatch)
    check_that_the_run_is_offline(run_dir, "refused|deadline")


def check_that_the_run_is_offline(run_dir: Path, why: str) -> None:
    """One line says why; every record is in the offline file; nothing but the end is waited for, and that not long."""
    said: list[str] = []
    sink = opened(run_dir, said, limits=HASTY)
    started_s = time.monotonic()
    for step in (1, 2, 3):
        sink.write(StepRecord(step, 1.0, {f"{MARK}_{step}": 1.0}))
    sink.close("finished")
    assert time.monotonic() - started_s < 10
    wandb.teardown()
    assert len(said) == 1 and said[0].startswith("W&B: offline (CommError: ")
    assert any(word in said[0] for word in why.split("|")), said
    (kept,) = offline_files(run_dir)
    assert all(f"{MARK}_{step}".encode() in kept.read_bytes() for step in (1, 2, 3))
    assert files_with_the_key(run_dir) == [] and KEY not in said[0]


def test_a_server_that_takes_its_time_keeps_nobody_waiting_and_has_everything_in_the_end(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with FakeWandb(delay_s=0.5) as server:
        meet(server.url, monkeypatch)
        sink = opened(run_dir, said)
        for step in (1, 2, 3):
            sink.write(StepRecord(step, 1.0, {MARK: 1.0}))
        assert said == [], "the server has not let it in yet"
        sink.close("finished")
        assert [point["trainer/step"] for point in server.runs[ID].history] == [1, 2, 3]
    assert len(said) == 1 and said[0].startswith("W&B: http://")


@pytest.mark.parametrize(("status", "delay_s"), [(500, 0.0), (200, SLOW_S)])
def test_a_server_that_fails_later_costs_a_line_and_a_bounded_end(
    status: int, delay_s: float, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with FakeWandb(status, delay_s, troubled="/file_stream") as server:
        meet(server.url, monkeypatch)
        started_s = time.monotonic()
        session(run_dir, {1: 1.0, 2: 1.0}, said, HASTY)
        assert time.monotonic() - started_s < 10
        assert server.runs[ID].history == []
    assert len(said) == 2 and said[0].startswith("W&B: http://")
    (kept,) = run_dir.glob("wandb/run-*")
    assert said[1] == (
        f"W&B has not taken everything within 2 s, `wandb sync {kept}` sends the rest; "
        "the run goes on, metrics.jsonl holds every record"
    )
    assert MARK.encode() in next(kept.glob("*.wandb")).read_bytes()


@pytest.mark.slow
def test_a_process_ends_soon_although_the_server_never_answers(run_dir: Path) -> None:
    program = "\n".join(
        [
            "from pathlib import Path; from tests.telemetry import wandb_sessions as t",
            f"t.session(Path({str(run_dir)!r}), {{1: 1.0}}, [], t.HASTY)",
        ]
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    with FakeWandb(delay_s=SLOW_S) as server:
        environment |= {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
        started_s = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert time.monotonic() - started_s < 15, "the client's error reports alone wait for 12 s"
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert offline_files(run_dir)

"""Processes that stand for ranks: one exit code for all, signals for all, and none is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer

import pytest

from dflash_exp.launch.children import LIFELINE
from dflash_exp.launch.local import run_ranks

PROLOGUE = "import os, signal, sys, time; rank = int(os.environ['RANK']); "


def ranks(body: str, n_ranks: int = 2, grace_s: float = 5.0) -> int:
    return run_ranks([sys.executable, "-c", PROLOGUE + body], n_ranks, grace_s)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("sys.exit(0)", 0),
        ("sys.exit(75)", 75),
        ("sys.exit(2)", 2),
        ("sys.exit(7)", 1),
        ("time.sleep(rank); sys.exit(2 - rank)", 2),
        ("time.sleep(.5 * rank); sys.exit(1 + rank)", 1),
        ("sys.exit(75 * rank)", 75),
        ("os.kill(os.getpid(), signal.SIGKILL) if rank else sys.exit(0)", 1),
    ],
)
def test_the_exit_code_is_that_of_the_first_to_fail_or_what_all_agree_on(body: str, code: int) -> None:
    assert ranks(body) == code


def test_every_rank_is_told_its_place_under_torchrun_s_names(tmp_path: Path) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE")
    body = f"open(f'{tmp_path}/{{rank}}', 'w').write(' '.join(os.environ[name] for name in {names}))"
    assert ranks(body, n_ranks=3) == 0
    assert [(tmp_path / str(r)).read_text() for r in range(3)] == [f"{r} {r} 3 3 127.0.0.1 True" for r in range(3)]


def test_the_others_have_their_grace_after_a_failure_and_are_ended_then(tmp_path: Path) -> None:
    body = f"rank or sys.exit(1); time.sleep(.5); open('{tmp_path}/said', 'w').close(); time.sleep(60)"
    started_s = time.monotonic()
    assert ranks(body, grace_s=2.0) == 1
    assert (tmp_path / "said").exists()
    assert time.monotonic() - started_s < 30


def test_a_signal_goes_to_every_rank_and_to_who_listened_before() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: heard.append(number))
    timer = Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGUSR2))
    try:
        timer.start()
        listens = "signal.signal(signal.SIGUSR2, lambda *_: sys.exit(75))"
        body = f"{listens}; signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2]); time.sleep(60)"
        assert ranks(body) == 75
    finally:
        timer.cancel()
        assert signal.signal(signal.SIGUSR2, before) is not None
    assert heard == [signal.SIGUSR2]


def test_a_rank_outlives_no_launcher_that_was_killed(tmp_path: Path) -> None:
    begun, over = (f"open(f'{tmp_path}/{word}-{{rank}}', 'w').close()" for word in ("begun", "over"))
    rank = PROLOGUE + f"{begun}; os.read(int(os.environ['{LIFELINE}']), 1); {over}"
    launcher = f"from dflash_exp.launch.local import run_ranks; run_ranks([{sys.executable!r}, '-c', {rank!r}], 2, 5)"
    process = subprocess.Popen([sys.executable, "-c", launcher], cwd=Path(__file__).parents[1])
    wait_for(2, tmp_path, "begun-*")
    assert process.poll() is None and not list(tmp_path.glob("over-*"))
    process.kill()
    process.wait()
    wait_for(2, tmp_path, "over-*")


def wait_for(n_files: int, folder: Path, pattern: str) -> None:
    """Fails after a minute, in which a busy machine imports torch."""
    for _ in range(600):
        if len(list(folder.glob(pattern))) == n_files:
            return
        time.sleep(0.1)
    pytest.fail(f"there are not {n_files} of {pattern}")

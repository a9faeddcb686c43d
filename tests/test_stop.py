"""The first signal asks, a second Ctrl-C ends at once, and the handlers of before come back."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

from dflash_exp.launch.local import run_ranks
from dflash_exp.stop import SIGNALS, StopSignals, say_at_once

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_is_said_once(number: signal.Signals) -> None:
    said: list[str] = []
    with StopSignals(said.append) as stop:
        assert stop.requested is None
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)  # a second one that is no Ctrl-C changes nothing
        assert stop.requested == number.name
    assert said == [f"{number.name}: stopping after this step; Ctrl-C again ends at once"]


def test_a_second_ctrl_c_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), StopSignals(lambda _: None):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopSignals(lambda _: None):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_process_without_stderr_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    say_at_once("to nobody")
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested == "SIGTERM"


TRAIN_WITH_SIGNALS = """
import os, signal, sys
from dflash_exp.cli import main

class Killing:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            for number in sys.argv[2].split(","):
                os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Killing())
sys.exit(main(["train", "evaluate=false", "steps=1"]))
"""
"""Sends itself signals as it imports a module."""


def trained_with_signals(where: Path, module: str, *numbers: int) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TRAIN_WITH_SIGNALS, module, ",".join(map(str, map(int, numbers)))]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("module", ["hydra", "torch"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_stop_while_the_libraries_are_imported_exits_with_75_and_begins_nothing(
    tmp_path: Path, module: str, number: int
) -> None:
    stopped = trained_with_signals(tmp_path, module, number)
    assert stopped.returncode == 75, stopped.stderr
    assert "stopped before anything was begun: the same command goes on" in stopped.stdout + stopped.stderr
    assert not list(tmp_path.rglob("*.json*"))


def test_a_second_ctrl_c_while_the_libraries_are_imported_ends_at_once(tmp_path: Path) -> None:
    ended = trained_with_signals(tmp_path, "hydra", signal.SIGINT, signal.SIGINT)
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1].startswith("dflash-exp: interrupted")


RANK = """
import sys, time
time.sleep(float(sys.argv[1]))
from dflash_exp.stop import StopSignals
with StopSignals(lambda _: None) as stop:
    began_s = time.monotonic()
    while stop.requested is None and time.monotonic() - began_s < 10:
        time.sleep(0.01)
    sys.exit(75 if stop.requested else 3)
"""
"""A rank that listens after a while only, as one that imports does."""


def test_a_signal_reaches_ranks_that_do_not_listen_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with StopSignals(lambda _: None) as stop:
        Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        assert run_ranks([sys.executable, "-c", RANK, "1"], 2, grace_s=5) == 75
    assert stop.requested == "SIGUSR2"


def test_a_stop_that_was_asked_for_before_there_were_ranks_reaches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert run_ranks([sys.executable, "-c", RANK, "0"], 2, grace_s=5, asked_to_stop=lambda: True) == 75


INTERRUPTED = """
import sys, time
from dataclasses import replace
from threading import Thread
from dflash_exp import cli

def run(arguments):
    Thread(target=time.sleep, args=(60,)).start()  # as a mirror that has not said its last word
    raise KeyboardInterrupt

cli.VERBS["plan"] = replace(cli.VERBS["plan"], run=run)
sys.argv = ["dflash-exp", "plan"]
sys.exit(cli.main())
"""


def test_an_interrupted_process_waits_for_no_thread() -> None:
    command, environment = [sys.executable, "-c", INTERRUPTED], os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1 and ended.stderr.startswith("dflash-exp: interrupted")

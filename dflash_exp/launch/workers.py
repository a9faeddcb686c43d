"""Commands run a few at a time on this machine, each in a process of its own.

In: commands, and how many may run at once. Out: an exit code for each. They are begun in their order; one that fails
leaves the others alone. A signal goes to those that run, once, and no other is begun; a process that it ends counts as
stopped. Nothing polls: the ends of processes and signals come through one queue.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from dflash_exp.launch.children import (
    DONE,
    FAILED,
    LIFELINE,
    STOPPED,
    WRONG_INPUT,
    forwarding,
    lifeline,
    threads_each,
)


@dataclass(frozen=True)
class Command:
    """What one process is to run. It gets its launcher's lifeline: see `children.stop_with_the_launcher`."""

    name: str
    """For people."""
    argv: Sequence[str]
    environment: Mapping[str, str]
    """What it has beside this process's own."""
    output: Path
    """Takes what it writes to stdout and stderr, behind what is there."""


@dataclass(frozen=True)
class Progress:
    """That a command has begun, or how it ended."""

    number: int
    """Among all, from 1."""
    command: Command
    code: int | None
    """None: it has begun. The process's own, or FAILED where it has none."""
    wall_s: float
    why: str = ""
    """Why it has none."""

    @property
    def word(self) -> str:
        """begun, done, stopped or failed, and how: `failed (exit code 3)`."""
        failed = f"failed ({self.why or f'exit code {self.code}'})"
        return {None: "begun", DONE: "done", STOPPED: "stopped"}.get(self.code, failed)


Share = Callable[[int], Mapping[str, str]]


def run_workers(
    commands: Sequence[Command],
    n_jobs: int,
    tell: Callable[[Progress], object],
    asked_to_stop: Callable[[], bool] = lambda: False,
    share: Share = lambda _: {},
) -> list[int]:
    """Run them all, at most `n_jobs` at once: 0 done, 75 stopped or never begun, 2 refused, 1 failed in any other way.

    `asked_to_stop`: whether a signal came before this was called. `share`: what of the environment the process in each
    of `n_jobs` places (from 0) has to itself; no two that run have one place. Must be called in the main thread. An
    exception, as a second Ctrl-C is where somebody listens for it, kills what runs and goes on. Raises ValueError for
    `n_jobs` under 1.
    """
    if n_jobs < 1:
        raise ValueError(f"n_jobs must be >= 1, got {n_jobs}; 1 runs them one after the other")
    with lifeline() as given:
        threads = threads_each(max(1, min(n_jobs, len(commands))))
        pool = _Pool(tell, {**os.environ, "OMP_NUM_THREADS": threads, LIFELINE: str(given)}, given, share)
        with forwarding(pool.ask_to_stop):
            try:
                return pool.run(commands, n_jobs, asked_to_stop)
            finally:
                pool.kill()


class _Pool:
    """The processes that run, and what is known of those that did."""

    def __init__(
        self, tell: Callable[[Progress], object], environment: Mapping[str, str], given: int, share: Share
    ) -> None:
        """`given`: the lifeline's end."""
        self._tell = tell
        self._environment = environment
        self._given = given
        self._share = share
        self._running: dict[int, tuple[Command, subprocess.Popen, float]] = {}
        self._places: dict[int, int] = {}
        """Of those that run."""
        self._codes: dict[int, int] = {}
        self._wakes: SimpleQueue[int | None] = SimpleQueue()
        """The number of a command whose process has ended; None: a signal."""
        self._signal: int | None = None
        self._sent = False

    def ask_to_stop(self, number: int) -> None:
        """For a signal handler: the first signal counts."""
        self._signal = self._signal or number
        self._wakes.put(None)

    def run(self, commands: Sequence[Command], n_jobs: int, asked_to_stop: Callable[[], bool]) -> list[int]:
        n_begun = 0
        while True:
            while n_begun < len(commands) and len(self._running) < n_jobs:
                if self._signal is not None or asked_to_stop():
                    break
                n_begun += 1
                self._begin(n_begun, commands[n_begun - 1])
            if self._signal is not None and not self._sent:
                self._send(self._signal)
            if not self._running:
                return [self._codes.get(number, STOPPED) for number in range(1, len(commands) + 1)]
            ended = self._wakes.get()
            if ended is not None:
                self._end(ended)

    def kill(self) -> None:
        """Whatever still runs."""
        for _, process, _ in self._running.values():
            process.kill()

    def _begin(self, number: int, command: Command) -> None:
        place = next(free for free in range(len(self._running) + 1) if free not in self._places.values())
        try:
            process = self._started(command, self._share(place))
        except OSError as error:
            self._codes[number] = FAILED
            self._tell(Progress(number, command, FAILED, 0.0, str(error)))
            return
        self._running[number], self._places[number] = (command, process, time.monotonic()), place
        Thread(target=lambda: (process.wait(), self._wakes.put(number)), daemon=True).start()
        self._tell(Progress(number, command, None, 0.0))

    def _started(self, command: Command, share: Mapping[str, str]) -> subprocess.Popen:
        """In a session of its own: a Ctrl-C in the terminal is for the launcher, which sends it on."""
        command.output.parent.mkdir(parents=True, exist_ok=True)
        with command.output.open("ab") as output:
            return subprocess.Popen(
                command.argv, env={**self._environment, **share, **command.environment}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT, pass_fds=[self._given], start_new_session=True,
            )  # fmt: skip

    def _send(self, number: int) -> None:
        self._sent = True
        for _, process, _ in self._running.values():
            process.send_signal(number)

    def _end(self, number: int) -> None:
        command, process, begun_s = self._running.pop(number)
        del self._places[number]
        code, why = process.returncode, ""
        if code < 0:  # a signal ended it: ours, for which it did not listen yet, or another
            ours = self._sent and -code == self._signal
            code, why = (STOPPED, "") if ours else (FAILED, f"killed by {_named(-code)}")
        self._codes[number] = code if code in (DONE, WRONG_INPUT, STOPPED) else FAILED
        self._tell(Progress(number, command, code, time.monotonic() - begun_s, why))


def _named(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"

"""Stopping on request: the first signal asks, a second Ctrl-C ends at once.

In: SIGINT, SIGTERM, SIGUSR2. Out: `StopSignals.requested`, which the line reads between two optimizer steps.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""Ctrl-C, what `kill` and Slurm send, and what Slurm can be told to send ahead of the time limit."""


def say_at_once(line: str) -> None:
    """For a signal handler: nothing that could be interrupted in the middle, and no reader is no reason to fail."""
    if sys.stderr is None:  # `2>&-`: the number 2 may be another file's by now
        return
    with suppress(OSError, ValueError):  # ValueError: it was closed
        os.write(sys.stderr.fileno(), f"{line}\n".encode())


class Stopped(Exception):
    """A stop was asked for and everything is saved."""


class StopSignals:
    """A context manager for the main thread; the handlers of before come back."""

    def __init__(self, say: Callable[[str], None] = say_at_once) -> None:
        self.requested: str | None = None
        """Name of the first signal."""
        self._say = say
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "StopSignals":
        self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # what a launcher has held back until here
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.requested is None:
            self.requested = name
            self._say(f"{name}: stopping after this step; Ctrl-C again ends at once")
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

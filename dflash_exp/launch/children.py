"""What launchers on this machine share: exit codes, signals that go on, and a pipe so that no process outlives them.

Between a launcher and a process of its own there are an exit code, a signal that asks it to stop, and the lifeline: a
pipe that nobody writes to and that closes when the launcher dies, however it dies. A process that is to end with its
launcher calls `stop_with_the_launcher` once a signal can be answered.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from types import FrameType

DONE, FAILED, WRONG_INPUT, STOPPED = 0, 1, 2, 75
"""Exit codes of a run, and of several."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
"""Signals that ask for a stop."""
LIFELINE = "DFLASH_EXP_LIFELINE"
"""The environment's name for the number of the pipe's open end."""


def of_all(codes: Iterable[int]) -> int:
    """The exit code of several runs: one that was stopped says that there is more to do, then comes what went wrong."""
    codes = set(codes)
    return next((code for code in (STOPPED, FAILED, WRONG_INPUT) if code in codes), DONE)


@contextmanager
def forwarding(tell: Callable[[int], object]) -> Iterator[None]:
    """Whatever signal comes is told, and goes on to the handler that was there before. For the main thread."""

    def forward(number: int, frame: FrameType | None) -> None:
        tell(number)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    before = {number: signal.getsignal(number) for number in FORWARDED}
    for number in FORWARDED:
        signal.signal(number, forward)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def lifeline() -> Iterator[int]:
    """The end of the pipe that processes begun meanwhile are to be given, its number in their environment."""
    given, held = os.pipe()
    try:
        yield given
    finally:
        os.close(given)
        os.close(held)


def stop_with_the_launcher() -> None:
    """Where the launcher dies, this process is asked to stop; one that has no launcher goes on as it is."""
    if LIFELINE not in os.environ:
        return

    def watch(given: int) -> None:
        with suppress(OSError):
            os.read(given, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=watch, args=(int(os.environ[LIFELINE]),), daemon=True).start()


def threads_each(n_processes: int) -> str:
    """OMP_NUM_THREADS of each of so many processes at once: what the user has set, else their share of the cores."""
    return os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // n_processes)))

"""How much of an input is read: a bar in a terminal, plain lines elsewhere.

In: the share that is done, as it grows. Out: a bar that a thread redraws, or a line at the beginning and every 15 s.
"""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dflash_exp.telemetry.progress import PLAIN_EVERY_S, is_drawn_on


class InputProgress:
    """A context manager; `update` whenever more is done."""

    def __init__(self, console: Console, what: str, clock: Callable[[], float]) -> None:
        self._console, self._what, self._clock = console, what, clock
        self._printed_s = clock()
        self._drawn = is_drawn_on(console)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not self._drawn)
        self._task = self._bar.add_task(what, total=1.0)

    def __enter__(self) -> "InputProgress":
        self._bar.start()
        if not self._drawn:
            self._print(0.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, share: float) -> None:
        """`share` of the input is done."""
        self._bar.update(self._task, completed=share)
        if not self._drawn and self._clock() - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = self._clock()
            self._print(share)

    def _print(self, share: float) -> None:
        self._console.print(f"{self._what} {share:.0%}", highlight=False, markup=False, soft_wrap=True)

"""The progress line: loss, probe loss, tokens per second, time left; a bar in a terminal, plain lines elsewhere."""

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

PLAIN_EVERY_S = 15.0


class ProgressLine:
    """A context manager; `update` after every step, `note` for a line that stays."""

    def __init__(self, console: Console, n_steps: int, clock: Callable[[], float]) -> None:
        self._console = console
        self._n_steps = n_steps
        self._clock = clock
        self._started_s = clock()
        self._printed_s = float("-inf")
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("train", total=n_steps, shown="")

    def __enter__(self) -> "ProgressLine":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, step: int, loss: float | None, probe_loss: float | None, tokens_per_s: float) -> None:
        """Show where the run is."""
        elapsed_s = self._clock() - self._started_s
        parts = ["loss -" if loss is None else f"loss {loss:.3f}"]
        parts += [] if probe_loss is None else [f"probe {probe_loss:.3f}"]
        parts += [f"{tokens_per_s:,.0f} tok/s", f"{duration(elapsed_s / step * (self._n_steps - step))} left"]
        shown = "  ".join(parts)
        if self._console.is_terminal:
            self._bar.update(self._task, completed=step, shown=shown)
        elif self._clock() - self._printed_s >= PLAIN_EVERY_S or step == self._n_steps:
            self._printed_s = self._clock()
            self.note(f"step {step}/{self._n_steps}  {shown}")

    def note(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(line, highlight=False, markup=False)


def duration(seconds: float) -> str:
    """2h03m, 4m10s or 12s."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"

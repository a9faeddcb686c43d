"""The progress of a run as it is shown: a live display in a terminal, plain lines elsewhere.

In: every optimizer step (`update` puts it by, whatever the number of steps). A terminal is redrawn twice a second by a
thread of its own, so that its clock goes on in a long step; elsewhere there is a line every 15 s. Either way the last
line says where the run was when it ended, or stopped, or failed.
"""

from collections.abc import Callable, Sequence
from math import floor

from rich.console import Console
from rich.live import Live

from dflash_exp.messages import StepResult, StepTiming
from dflash_exp.telemetry.duration import duration
from dflash_exp.telemetry.live import Frame, figure
from dflash_exp.telemetry.standing import Standing, Tally

PLAIN_EVERY_S = 15.0
REDRAWN_PER_S = 2


class ProgressLine:
    """A context manager; `update` after every step, `note` for a line that stays.

    `epoch_steps` are the optimizer steps that the run takes in each of its epochs; a resumed run has done
    `first_step` of them before.
    """

    def __init__(
        self, console: Console, epoch_steps: Sequence[int], clock: Callable[[], float], first_step: int = 0
    ) -> None:
        self._console = console
        self._clock = clock
        self._tally = Tally(epoch_steps, clock, first_step)
        self._step = self._printed_step = first_step
        self._printed_s = float("-inf")
        self._live = Live(
            console=console,
            get_renderable=lambda: Frame(self._tally.standing()),
            refresh_per_second=REDRAWN_PER_S,
            transient=True,
        )

    def __enter__(self) -> "ProgressLine":
        if is_drawn_on(self._console):
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        if self._step > self._printed_step:
            self._print_line()

    def update(self, step: int, result: StepResult, timing: StepTiming, probe_loss: float | None) -> None:
        """Optimizer step `step`, counted from 1 over the whole run, is done; `probe_loss` is the last one known."""
        self._step = step
        self._tally.add(step, result, timing, probe_loss)
        if not self._live.is_started and self._clock() - self._printed_s >= PLAIN_EVERY_S:
            self._print_line()

    def note(self, line: str) -> None:
        """Print a line that stays."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _print_line(self) -> None:
        self._printed_s, self._printed_step = self._clock(), self._step
        self.note(plain_line(self._tally.standing()))


def is_drawn_on(console: Console) -> bool:
    """Whether lines can be drawn over, with blocks and digits: a terminal, not a dumb one, that knows UTF-8."""
    return console.is_interactive and not console.options.ascii_only


def plain_line(standing: Standing) -> str:
    """Step, epoch, losses, rate, time left, and the stage that has the least time to spare; under 110 characters."""
    epoch = "" if standing.n_epochs == 1 else f"{standing.epoch}/{standing.n_epochs} "
    parts = [f"step {standing.step}/{standing.n_steps}", f"epoch {epoch}{floor(100 * standing.epoch_share)}%"]
    parts += [f"loss {figure(standing.loss)}"]
    parts += [] if standing.probe_loss is None else [f"probe {standing.probe_loss:.3f}"]
    parts += [f"{standing.tokens_per_s:,.0f} tok/s", f"{duration(standing.left_s or 0.0)} left"]
    if standing.recent.stages:
        slowest = max(standing.recent.stages, key=lambda stage: stage.busy_share)
        parts += [f"{slowest.name} {slowest.busy_share:.0%} busy"]
    return "  ".join(parts)

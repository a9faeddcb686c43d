"""What is shown of a run: a display in a terminal, plain lines elsewhere, and always where it ended."""

import io
import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from dflash_exp.messages import LossSums, StageTime, StepResult, StepTiming
from dflash_exp.telemetry.duration import duration
from dflash_exp.telemetry.progress import REDRAWN_PER_S, ProgressLine, is_drawn_on, plain_line
from dflash_exp.telemetry.standing import Tally

MakeStep = Callable[..., tuple[StepResult, StepTiming]]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A file that is no terminal unless a console is told so; then one that can be drawn on."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("TTY_INTERACTIVE", raising=False)
    return io.StringIO()


def test_outside_a_terminal_there_is_a_line_every_fifteen_seconds_and_one_at_the_end(
    out: io.StringIO, step: MakeStep
) -> None:
    now_s = [0.0]
    with ProgressLine(Console(file=out, width=80), [10], lambda: now_s[0]) as progress:
        for number in range(1, 11):
            now_s[0] = 4.0 * number
            progress.update(number, *step(losses=[(0, 2.0 / number)], tokens=4938), 3.25 if number > 5 else None)
    assert out.getvalue().splitlines() == [
        "step 1/10  epoch 10%  loss 2.000  1,234 tok/s  36s left  target 50% busy",
        "step 5/10  epoch 50%  loss 0.400  1,234 tok/s  20s left  target 50% busy",
        "step 9/10  epoch 90%  loss 0.222  probe 3.250  1,234 tok/s  4s left  target 50% busy",
        "step 10/10  epoch 100%  loss 0.200  probe 3.250  1,234 tok/s  0s left  target 50% busy",
    ]


def test_a_resumed_run_goes_on_counting_and_its_time_left_is_by_its_own_steps(out: io.StringIO, step: MakeStep) -> None:
    now_s = [500.0]
    with ProgressLine(Console(file=out), [10, 20], lambda: now_s[0], first_step=20) as progress:
        now_s[0] += 3.0
        progress.update(21, *step(), None)
    assert out.getvalue() == "step 21/30  epoch 2/2 55%  loss 2.000  33 tok/s  27s left  target 50% busy\n"


def test_a_run_that_fails_says_where_it_was(out: io.StringIO, step: MakeStep) -> None:
    with pytest.raises(FloatingPointError), ProgressLine(Console(file=out), [10], lambda: 0.0) as progress:
        for number in (1, 2, 3):
            progress.update(number, *step(), None)
        raise FloatingPointError
    assert [line[:9] for line in out.getvalue().splitlines()] == ["step 1/10", "step 3/10"]


def test_a_run_without_a_step_has_no_line(out: io.StringIO) -> None:
    with ProgressLine(Console(file=out), [10], lambda: 0.0, first_step=4):
        pass
    assert out.getvalue() == ""


def test_a_step_in_which_nothing_counts_has_a_dash_for_a_loss(out: io.StringIO, step: MakeStep) -> None:
    result, timing = step()
    with ProgressLine(Console(file=out), [1], lambda: 0.0) as progress:
        progress.update(1, replace(result, sums=LossSums(0.0, 0.0, 0, 0, 0, 1)), timing, None)
    assert out.getvalue().startswith("step 1/1  epoch 100%  loss -  0 tok/s")


def test_a_plain_line_of_a_week_of_training_has_at_most_110_characters(step: MakeStep) -> None:
    now_s = [0.0]
    tally = Tally([46_733] * 10, lambda: now_s[0], first_step=0)
    now_s[0] = 99 * 3600.0
    tally.add(420_596, *step(losses=[(5, 3.5)], tokens=99 * 3600 * 123_456, target=StageTime(1.0, 0.0)), 10.25)
    line = plain_line(tally.standing())
    assert "epoch 9/10 99%" in line and "123,456 tok/s" in line and "target 100% busy" in line
    assert len(line) <= 110


def test_a_note_stays_as_it_is(out: io.StringIO) -> None:
    with ProgressLine(Console(file=out, width=20), [1], lambda: 0.0) as progress:
        progress.note("rows [3, 14] of [bold]bucket 5[/bold] skipped")
    assert out.getvalue() == "rows [3, 14] of [bold]bucket 5[/bold] skipped\n"


def test_a_terminal_is_drawn_on_seldom_however_many_steps_there_are(out: io.StringIO, step: MakeStep) -> None:
    console = Console(file=out, width=100, force_terminal=True)
    began_s = time.monotonic()
    with ProgressLine(console, [2000], time.monotonic) as progress:
        for number in range(1, 2001):
            progress.update(number, *step(), 3.25)
        progress.note("a note")
    took_s = time.monotonic() - began_s
    assert "\x1b[2K" in out.getvalue().rpartition("╯")[2], "the last frame is wiped off"
    text = ESCAPES.sub("", out.getvalue())
    assert 1 <= text.count("time of the last") <= 2 + took_s * REDRAWN_PER_S, "with the note, at the end, by the clock"
    lines = [line.rstrip() for line in text.splitlines()]
    assert "a note" in "".join(lines) and lines[-1].startswith("step 2000/2000  epoch 100%  loss 2.000  probe 3.250")


def test_a_terminal_is_drawn_on_while_a_step_takes_long(out: io.StringIO) -> None:
    with ProgressLine(Console(file=out, width=100, force_terminal=True), [10], time.monotonic):
        give_up_s = time.monotonic() + 30
        while out.getvalue().count("the first step runs") < 3 and time.monotonic() < give_up_s:
            time.sleep(0.05)
        assert out.getvalue().count("the first step runs") >= 3


def test_what_cannot_be_drawn_on_gets_plain_lines(monkeypatch: pytest.MonkeyPatch, out: io.StringIO) -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert is_drawn_on(Console(file=out, force_terminal=True))
    assert not is_drawn_on(Console(file=ascii_only, force_terminal=True))
    assert not is_drawn_on(Console(file=out))
    monkeypatch.setenv("TERM", "dumb")
    assert not is_drawn_on(Console(file=out, force_terminal=True))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (59.6, "1m00s"), (250, "4m10s"), (3600, "1h00m"), (7385, "2h03m")]
)
def test_durations_read_as_people_write_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text

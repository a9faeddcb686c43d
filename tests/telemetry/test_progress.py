"""The progress line outside a terminal: a plain line now and then, and always the last."""

import io

import pytest
from rich.console import Console

from dflash_exp.telemetry.progress import ProgressLine, duration


def test_outside_a_terminal_there_is_a_line_every_fifteen_seconds_and_one_at_the_end() -> None:
    out, now_s = io.StringIO(), [0.0]
    with ProgressLine(Console(file=out, width=100), 10, lambda: now_s[0]) as progress:
        for step in range(1, 11):
            now_s[0] = 4.0 * step
            progress.update(step, 2.0 / step, 3.25 if step > 5 else None, 1234.5)
    assert out.getvalue().splitlines() == [
        "step 1/10  loss 2.000  1,234 tok/s  36s left",
        "step 5/10  loss 0.400  1,234 tok/s  20s left",
        "step 9/10  loss 0.222  probe 3.250  1,234 tok/s  4s left",
        "step 10/10  loss 0.200  probe 3.250  1,234 tok/s  0s left",
    ]


def test_a_step_in_which_nothing_counts_has_a_dash_for_a_loss() -> None:
    out = io.StringIO()
    with ProgressLine(Console(file=out, width=100), 1, lambda: 0.0) as progress:
        progress.update(1, None, None, 10.0)
    assert out.getvalue().startswith("step 1/1  loss -")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.4, "59s"), (59.6, "1m00s"), (250, "4m10s"), (3600, "1h00m"), (7385, "2h03m")]
)
def test_durations_read_as_people_write_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""The live display, frame by frame, as text: nothing in it depends on colour."""

import io
import math
from collections.abc import Callable

import pytest
from rich.console import Console

from dflash_exp.messages import ChannelFill, StepResult, StepTiming
from dflash_exp.telemetry.live import BUCKET_STYLES, Frame, bar, heights, seconds, strip
from dflash_exp.telemetry.standing import Standing, Tally

MakeStep = Callable[..., tuple[StepResult, StepTiming]]
CHANNELS = {"batches": ChannelFill(6, 8, 1_310_000), "features": ChannelFill(3, 12, 412_300_000)}


def drawn(standing: Standing, width: int = 100) -> list[str]:
    """The lines of a frame, as a terminal would show them."""
    console = Console(record=True, width=width, force_terminal=True, file=io.StringIO())
    console.print(Frame(standing))
    return console.export_text().splitlines()


@pytest.fixture
def tally(step: MakeStep) -> Tally:
    """Four steps of 2 s in the second of two epochs, the clock 1 s further."""
    now_s = [0.0]
    tally = Tally([10, 20], lambda: now_s[0], first_step=10)
    for number, losses in enumerate([[(0, 4.0), (5, 2.0)], [(1, 3.5)], [(3, 2.5), (12, 2.0)], [(0, 3.75)]], start=11):
        now_s[0] += 2.0
        tally.add(number, *step(losses=losses, tokens=2000, channels=CHANNELS), 3.25)
    now_s[0] += 1.0
    return tally


def test_a_frame_is_this(tally: Tally) -> None:
    expected = """
╭──────────────────────────────────────────────────────────────────────────────────────────────────╮
│ step 14 of 30   epoch 2 of 2, 20.0% of it                                     9s gone   32s left │
│ █████████████████████████████████████████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ │
│ loss 3.750   probe loss 3.250   1,000 tok/s                                        1.00 s a step │
│                                                                                                  │
│ time of the last 4 steps: █ busy ░ waiting, ◀ the slowest stage                                  │
│ prefetch  █░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░   1% busy  99% waiting   10 ms   │
│ target    ██████████████████████████                             50% busy   0% waiting  500 ms ◀ │
│ drafter   █████████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  25% busy  75% waiting  250 ms   │
│                                                                                                  │
│ channels: █ filled ░ empty                                                                       │
│ batches   ████████████████████████████████████████░░░░░░░░░░░░░  6 of 8 items          1.3 MB    │
│ features  █████████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  3 of 12 items       412.3 MB    │
│                                                                                                  │
│ last batches, newest right: bucket, and its loss in that step, ▁ 2.00 to █ 4.00                  │
│ bucket    0513+0                                                                                 │
│ loss      █▁▆▃▁▇                                                                                 │
╰──────────────────────────────────────────────────────────────────────────────────────────────────╯
"""
    assert drawn(tally.standing()) == expected.strip().splitlines()


@pytest.mark.parametrize("width", [40, 61, 100, 200])
def test_a_frame_is_as_wide_as_the_terminal_and_loses_no_line(tally: Tally, width: int) -> None:
    lines = drawn(tally.standing(), width)
    assert len(lines) == len(drawn(tally.standing())) and {len(line) for line in lines} == {width}


def test_where_there_is_no_room_for_all_batches_the_newest_are_drawn(step: MakeStep) -> None:
    tally = Tally([1], lambda: 0.0, first_step=0)
    tally.add(1, *step(losses=[(5, 2.0)] * 10 + [(bucket % 5, 2.0) for bucket in range(30)]), None)
    assert drawn(tally.standing(), 44)[-3] == "│ bucket    " + "01234" * 6 + " │"


def test_the_time_left_is_seen_in_a_narrow_terminal(tally: Tally) -> None:
    assert "9s gone   32s left" in drawn(tally.standing(), 40)[1]


def test_where_there_are_no_channels_none_are_drawn(step: MakeStep) -> None:
    tally = Tally([2], lambda: 0.0, first_step=0)
    tally.add(1, *step(channels={}), None)
    text = "\n".join(drawn(tally.standing()))
    assert "channels" not in text and "target" in text and "bucket" in text


def test_before_the_first_step_only_the_head_is_drawn() -> None:
    lines = drawn(Tally([2], lambda: 0.0, first_step=0).standing())
    assert len(lines) == 5 and "loss -" in lines[3] and "the first step runs" in lines[3]


def test_each_bucket_has_a_digit_and_a_colour_and_those_past_the_last_share_one() -> None:
    cells = strip([0, 1, 2, 3, 4, 5, 6, 12])
    assert cells.plain == "0123456+"
    styles = [str(span.style) for span in cells.spans]
    assert styles == [*BUCKET_STYLES, BUCKET_STYLES[5], BUCKET_STYLES[5]] and len(set(styles)) == 6


def test_losses_are_drawn_from_the_lowest_to_the_highest_and_none_as_a_gap() -> None:
    assert heights([1.0, None, 8.0, 4.5]) == "▁ █▅"
    assert heights([3.0, 3.0]) == "▁▁" and heights([None]) == " "


def test_a_loss_that_is_not_finite_is_an_exclamation_mark_and_the_others_keep_their_scale(step: MakeStep) -> None:
    tally = Tally([3], lambda: 0.0, first_step=0)
    for number, loss in enumerate([2.0, math.inf, 4.0, math.nan], start=1):
        tally.add(min(number, 3), *step(losses=[(0, loss)]), None)
    lines = drawn(tally.standing())
    assert "loss nan" in lines[3] and "▁ 2.00 to █ 4.00" in lines[-4] and lines[-2].startswith("│ loss      ▁!█! ")


def test_a_bar_s_parts_follow_each_other_and_never_leave_its_width() -> None:
    assert bar([(0.5, "#", "red"), (0.25, ".", "dim")], 8).plain == "####..  "
    assert bar([(0.46, "#", "red"), (0.54, ".", "dim")], 5).plain == "##..."
    assert bar([(0.9, "#", "red"), (0.9, ".", "dim")], 5).plain == "####."


@pytest.mark.parametrize(
    ("value", "text"), [(0.0124, "12 ms"), (0.9994, "999 ms"), (0.9996, "1.00 s"), (12.345, "12.35 s")]
)
def test_short_times_are_milliseconds_longer_ones_seconds(value: float, text: str) -> None:
    assert seconds(value) == text

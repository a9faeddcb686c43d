"""The live display: one frame, drawn with rich from a `Standing`.

Nothing depends on colour: a full block is busy time or a filled place, a shaded one is waiting or an empty place, a
bucket is a digit. Lines are laid out by hand: a rich table costs several times as much a frame.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.filesize import decimal
from rich.panel import Panel
from rich.text import Text

from dflash_exp.messages import ChannelFill
from dflash_exp.telemetry.duration import duration
from dflash_exp.telemetry.standing import Recent, StageShare, Standing

BUCKET_STYLES = (
    "bright_white on #440154",
    "bright_white on #414487",
    "bright_white on #2a788e",
    "black on #22a884",
    "black on #7ad151",
    "black on #fde725",
)
"""From short to long, dark to light (viridis); a bucket past the last has the last one's."""
STAGE_STYLES = {"prefetch": "cyan", "target": "magenta", "drafter": "green"}
FULL, SHADED, FAINT = "█", "░", "dim"
HEIGHTS = "▁▂▃▄▅▆▇█"
LABEL = 10
"""Columns of a line's name, at least."""
FIGURES = 33
"""Columns to the right of a bar."""
LEAST_BAR = 8


@dataclass(frozen=True)
class Frame:
    """A run at one moment, as wide as the terminal."""

    standing: Standing

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, now = options.max_width - 4, self.standing.recent
        lines = head_lines(self.standing, width)
        for section in (time_lines(now, width), channel_lines(now, width), batch_lines(now, width)):
            lines += [Text(), *section] if section else []
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        yield Panel(Group(*lines), box=box.ROUNDED, border_style=FAINT)


def head_lines(standing: Standing, width: int) -> list[Text]:
    """How far the run is, and how well it learns."""
    done, started = standing.step / standing.n_steps, standing.recent.n_steps > 0
    left = "" if standing.left_s is None else f"   {duration(standing.left_s)} left"
    far = Text.assemble(
        (f"step {standing.step:,} of {standing.n_steps:,}", "bold"),
        f"   epoch {standing.epoch} of {standing.n_epochs}, {standing.epoch_share:.1%} of it",
    )
    figures = Text.assemble(
        "loss ", (figure(standing.loss), "bold"), "   probe loss ", (figure(standing.probe_loss), "bold"),
        "   ", (f"{standing.tokens_per_s:,.0f}", "bold"), " tok/s",
    )  # fmt: skip
    return [
        spread(far, Text.assemble(f"{duration(standing.elapsed_s)} gone", (left, "bold")), width),
        bar([(done, FULL, "bright_blue"), (1 - done, SHADED, FAINT)], width),
        spread(figures, Text(f"{seconds(standing.recent.step_s)} a step" if started else "the first step runs"), width),
    ]


def time_lines(recent: Recent, width: int) -> list[Text]:
    """A bar for each stage: busy, then waiting, of the time that its workers had."""
    if not recent.stages:
        return []
    slowest = max(recent.stages, key=lambda stage: stage.busy_share)
    steps = "the last step" if recent.n_steps == 1 else f"the last {recent.n_steps} steps"
    heading = Text(f"time of {steps}: {FULL} busy {SHADED} waiting, ◀ the slowest stage", FAINT)
    return [heading, *(stage_line(stage, stage is slowest, width) for stage in recent.stages)]


def stage_line(stage: StageShare, is_slowest: bool, width: int) -> Text:
    """One stage; seconds are busy ones, a step."""
    parts = [(stage.busy_share, FULL, STAGE_STYLES[stage.name]), (stage.wait_share, SHADED, FAINT)]
    shares = f" {stage.busy_share:4.0%} busy {stage.wait_share:4.0%} waiting {seconds(stage.busy_s):>7}"
    line = Text(f"{stage.name:<{LABEL}}").append_text(bar(parts, bar_width(width, LABEL)))
    return line.append(shares).append(" ◀" if is_slowest else "", "bold")


def channel_lines(recent: Recent, width: int) -> list[Text]:
    """A bar for each channel: what it holds, of what it may hold."""
    if not recent.channels:
        return []
    longest = max(LABEL, *(len(name) + 1 for name in recent.channels))
    heading = Text(f"channels: {FULL} filled {SHADED} empty", FAINT)
    return [heading, *(channel_line(name, fill, longest, width) for name, fill in recent.channels.items())]


def channel_line(name: str, fill: ChannelFill, label: int, width: int) -> Text:
    """One channel; `label` columns for its name."""
    share = fill.items / fill.capacity
    line = Text(f"{name:<{label}}")
    line.append_text(bar([(share, FULL, "yellow"), (1 - share, SHADED, FAINT)], bar_width(width, label)))
    held = f"{fill.items} of {fill.capacity} items"
    return line.append(f"  {held:<18}{decimal(fill.bytes):>10}")


def batch_lines(recent: Recent, width: int) -> list[Text]:
    """The last batches, a cell each: the bucket, and under it how high the loss was."""
    batches = recent.batches[-max(1, width - LABEL) :]
    if not batches:
        return []
    losses = [batch.loss for batch in batches]
    low, high = extent(losses)
    scale = f"{HEIGHTS[0]} {low:.2f} to {HEIGHTS[-1]} {high:.2f}"
    return [
        Text(f"last batches, newest right: bucket, and its loss in that step, {scale}", FAINT),
        Text(f"{'bucket':<{LABEL}}").append_text(strip([batch.bucket for batch in batches])),
        Text(f"{'loss':<{LABEL}}{heights(losses)}"),
    ]


def strip(buckets: Sequence[int]) -> Text:
    """A coloured digit for each batch; a plus sign from bucket 10 on."""
    cells = Text()
    for bucket in buckets:
        cells.append(str(bucket) if bucket < 10 else "+", BUCKET_STYLES[min(bucket, len(BUCKET_STYLES) - 1)])
    return cells


def heights(values: Sequence[float | None]) -> str:
    """A block for each value, from the lowest of them to the highest; a space for None, "!" for NaN and infinity."""
    low, high = extent(values)
    scale = (len(HEIGHTS) - 1) / ((high - low) or 1.0)
    signs = (" " if v is None else HEIGHTS[round((v - low) * scale)] if isfinite(v) else "!" for v in values)
    return "".join(signs)


def extent(values: Sequence[float | None]) -> tuple[float, float]:
    """Lowest and highest of the finite ones; zeros where there are none."""
    known = [value for value in values if value is not None and isfinite(value)]
    return min(known, default=0.0), max(known, default=0.0)


def bar(parts: Sequence[tuple[float, str, str]], width: int) -> Text:
    """Parts (share, sign, style) one after the other; what is left of `width` is blank."""
    drawn, end, total = Text(), 0, 0.0
    for share, sign, style in parts:
        total += share
        begin, end = end, min(round(total * width), width)
        drawn.append(sign * (end - begin), style)
    return drawn.append(" " * (width - end))


def bar_width(width: int, label: int) -> int:
    """Columns that a bar has between its name and its figures."""
    return max(LEAST_BAR, width - label - FIGURES)


def spread(left: Text, right: Text, width: int) -> Text:
    """One text at each side; where there is no room for both, the left one is cut."""
    left.truncate(max(0, width - right.cell_len - 3), overflow="ellipsis", pad=True)
    return left.append("   ").append_text(right)


def figure(value: float | None) -> str:
    """Three digits behind the point; a dash for None."""
    return "-" if value is None else f"{value:.3f}"


def seconds(value: float) -> str:
    """812 ms or 1.24 s."""
    return f"{value * 1000:.0f} ms" if value < 0.9995 else f"{value:.2f} s"

"""The panels of a plan's figure: each one drawing, into axes of its own, of what all of them share.

Nothing global is touched: no pyplot, no settings. Buckets go from dark to light in the order of their lengths, and too
often is orange where too rarely is blue: both keep their order for every kind of colour vision, and in grey.
"""

# N batches, K buckets, C columns, H rows of pixels

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, MaxNLocator

from dflash_exp.compare import plan_shares

INK, FAINT, ALARM = "#222222", "#8a8a8a", "#b2182b"
TOO_RARE_TO_TOO_OFTEN = LinearSegmentedColormap.from_list(
    "rate", ["#0b3c6f", "#5e9bcb", "#f6f6f4", "#f0a35e", "#8c3b00"]
)
EVERY_BATCH = 300
"""Up to so many batches the strip shows each of them."""
STRIP_COLUMNS, WINDOW_COLUMNS, MIX_PIXELS = 120, 300, 240
FEWEST_PIECES, MOST_PIECES = 40, 120
LONG_RUN = 16
"""Longer runs are in the colour of alarm: a shuffle hardly has any, even where a bucket holds half of the batches."""
MANY_BUCKETS, MOST_NAMES = 12, 8
"""Where there are more buckets than the one, as few are named as the other says."""
NARROW_BATCHES = 60
"""Deviations within it leave room for the dashes of one batch."""
WINDOW_BATCHES, WINDOWS_AT_LEAST = 100, 20
"""So many windows are shown even where fewer of 100 batches fit, then shorter ones."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What all panels share."""

    order: np.ndarray
    """int [N], the bucket of each batch."""
    document: Mapping[str, Any]
    """plan.json."""

    @property
    def n_batches(self) -> int:
        """N."""
        return len(self.order)

    @cached_property
    def counts(self) -> np.ndarray:
        """Batches per bucket, int64 [K]."""
        return np.array(self.document["counts"], dtype=np.int64)

    @property
    def many(self) -> bool:
        """More buckets than can be told apart one by one."""
        return len(self.counts) > MANY_BUCKETS

    @cached_property
    def colours(self) -> np.ndarray:
        """One RGBA a bucket, dark for the short ones: float [K, 4]."""
        return colormaps["viridis"](np.linspace(0, 0.88, len(self.counts)))

    @cached_property
    def ends(self) -> list[tuple[float, int]]:
        """At which share of the epoch each bucket runs out, and the bucket; empty ones left out."""
        return [(share, b) for b, share in enumerate(self.document["exhausted_at"]) if share is not None]


def draw_strip(axes: Axes, shown: Shown) -> None:
    """Step by bucket: how often each is drawn, or every single batch of a short epoch; a mark where it runs out."""
    _title(axes, "How often each bucket is drawn")
    n_buckets = len(shown.counts)
    if shown.n_batches > EVERY_BATCH:
        _draw_rate_key(axes)
    axes.imshow(_strip_cells(shown), aspect="auto", extent=(0, 1, n_buckets - 0.5, -0.5), interpolation="nearest")
    if not shown.many:
        axes.hlines(np.arange(1, n_buckets) - 0.5, 0, 1, color="white", linewidth=2)
    shares, rows = np.array(shown.ends).T
    half, width = (0.5, 1) if shown.many else (0.42, 2)
    axes.vlines(shares, rows - half, rows + half, color=INK, linewidth=width, clip_on=False)
    named = range(0, n_buckets, -(-n_buckets // MOST_NAMES) if shown.many else 1)
    axes.text(0.53, 1.055, "black: its last batch", size=8, color=FAINT, transform=axes.transAxes)
    axes.set(xlim=(0, 1), ylim=(n_buckets - 0.5, -0.5))
    axes.set_yticks(list(named), [str(b) for b in named])
    axes.set_ylabel("bucket", size=9, color=INK)
    _plain(axes)
    axes.xaxis.set_visible(False)
    axes.tick_params(left=False, pad=11)
    axes.scatter([-0.012] * len(named), named, s=45, marker="s", color=shown.colours[list(named)], clip_on=False)


def _strip_cells(shown: Shown) -> np.ndarray:
    """The colour of each bucket in each column of the strip, RGBA: float [K, C, 4]."""
    n_buckets = len(shown.counts)
    if shown.n_batches <= EVERY_BATCH:
        cells = np.ones((n_buckets, shown.n_batches, 4))
        cells[shown.order, np.arange(shown.n_batches)] = shown.colours[shown.order]
        return cells
    n_columns = min(STRIP_COLUMNS, max(24, shown.n_batches // (6 * n_buckets)))
    bounds = plan_shares.columns(shown.n_batches, n_columns)
    rate = plan_shares.relative_rate(shown.order, shown.counts, bounds)
    return TOO_RARE_TO_TOO_OFTEN(np.clip(rate / 2, 0, 1))


def _draw_rate_key(axes: Axes) -> None:
    """What the strip's colours mean, at its upper right, in the strip's own axes: further ones are slow to make."""
    colours = TOO_RARE_TO_TOO_OFTEN(np.linspace(0, 1, 64)[None])
    extent = (0.77, 0.98, 1.065, 1.12)
    axes.imshow(colours, aspect="auto", extent=extent, transform=axes.transAxes, clip_on=False)
    for at, name in ((0.77, "never"), (0.875, "fair"), (0.98, "twice")):
        axes.text(at, 1.14, name, size=8, color=INK, ha="center", transform=axes.transAxes)


def draw_deviation(axes: Axes, shown: Shown) -> None:
    """Each bucket's cumulative draws against the diagonal; shaded between lowest and highest of a stretch."""
    _title(axes, "Batches ahead of the fair share")
    lowest, highest = -1.2, 1.2
    for b, own in enumerate(plan_shares.slots_by_bucket(shown.order, shown.counts)):
        if len(own) == 0:
            continue
        n_pieces = min(MOST_PIECES, max(FEWEST_PIECES, len(own) // 6))
        at, low, high = plan_shares.deviation(own, shown.n_batches, n_pieces)
        lowest, highest = min(lowest, float(low.min())), max(highest, float(high.max()))
        axes.plot(at, (low + high) / 2, color=shown.colours[b], linewidth=0.6 if shown.many else 1.3)
        if not shown.many:
            axes.fill_between(at, low, high, color=shown.colours[b], alpha=0.22, linewidth=0)
    axes.axhline(0, color=FAINT, linewidth=0.8)
    narrow = highest - lowest < NARROW_BATCHES
    if narrow:
        axes.hlines((-1, 1), 0, 1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3)
    remarks = ["shade: the range"] * (not shown.many) + ["dashes: one batch"] * narrow
    _remark(axes, ", ".join(remarks))
    margin = 0.07 * (highest - lowest)
    axes.set(ylim=(lowest - margin, highest + margin))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+,.0f}".replace("-", "−") if value else "0"))
    _plain(axes)
    axes.xaxis.set_visible(False)


def draw_mix(axes: Axes, shown: Shown) -> None:
    """The buckets' shares of each window of 100 batches, one on the other; of each batch where there are fewer."""
    tv = shown.document["window_tv"]
    window = max(1, min(WINDOW_BATCHES, shown.n_batches // WINDOWS_AT_LEAST))
    off = f", {percent(tv['mean'])} off" if tv is not None and tv["window"] == window else ""
    _title(axes, f"The mix of {window} batches{off}" if window > 1 else "The bucket of every batch")
    begins, step = plan_shares.spread_windows(shown.n_batches, window, WINDOW_COLUMNS)
    tops = np.cumsum(plan_shares.mix(shown.order, len(shown.counts), begins, begins + window), axis=0)
    heights = (np.arange(MIX_PIXELS) + 0.5) / MIX_PIXELS
    bucket_HC = np.stack([np.searchsorted(top[:-1], heights, side="right") for top in tops.T], axis=1)
    end = (begins[-1] + step) / shown.n_batches
    image = shown.colours[bucket_HC]
    axes.imshow(image, aspect="auto", extent=(0, end, 0, 1), origin="lower", interpolation="nearest")
    if not shown.many:
        fair = np.cumsum(shown.counts)[:-1] / shown.n_batches
        axes.hlines(fair, 0, 1, color="white", linewidth=0.9, linestyle=(0, (4, 3)))
        _remark(axes, "dashes: the mix of the epoch")
    shares = FuncFormatter(lambda value, _: f"{100 * value:.0f} %")
    axes.set(xlim=(0, 1), ylim=(0, 1), yticks=(0, 0.5, 1))
    axes.yaxis.set_major_formatter(shares)
    axes.xaxis.set_major_formatter(shares)
    axes.set_xlabel("share of the epoch", size=9, color=INK)
    _plain(axes)


def draw_first_tenth(axes: Axes, shown: Shown) -> None:
    """How often each bucket is drawn in the first tenth of the epoch, 1 = fair, beside its row of the strip."""
    _title(axes, "In the first tenth")
    rates = shown.document["pick_rate"]["first_10pct"]
    rows = np.array([b for b, rate in enumerate(rates) if rate is not None])
    values = np.array([rates[b] for b in rows])
    bars = axes.barh(rows, values - 1, left=1, height=1 if shown.many else 0.62, color=shown.colours[rows])
    axes.axvline(1, color=FAINT, linewidth=0.8)
    if not shown.many:
        axes.bar_label(bars, [f"{value:.2f}" for value in values], size=8, padding=3, color=INK)
    reach = max(0.5, 1.6 * float(np.abs(values - 1).max()))
    axes.set(xlim=(1 - min(1.6, reach), 1 + reach))
    axes.text(1, -0.06, "fair", size=8.5, color=INK, ha="center", va="top", transform=axes.get_xaxis_transform())
    axes.set_axis_off()


def draw_runs(axes: Axes, shown: Shown) -> None:
    """The share of the batches that lie in runs of 1, 2, 3 to 4, 5 to 8, ... batches of one bucket."""
    _title(axes, "Batches in runs of")
    bounds, shares = plan_shares.share_by_run({int(size): n for size, n in shown.document["run_lengths"].items()})
    bounds, shares = bounds[shares > 0], shares[shares > 0]
    rows = np.arange(len(bounds))
    bars = axes.barh(rows, shares, height=0.66, color=[ALARM if bound > LONG_RUN else FAINT for bound in bounds])
    axes.bar_label(bars, [percent(share) for share in shares], size=8, padding=3, color=INK)
    axes.set(ylim=(max(9, len(rows)) - 0.4, -0.6), xlim=(0, 1.5 * shares.max()))
    for row, bound in zip(rows.tolist(), bounds.tolist(), strict=True):
        axes.text(
            -0.06, row, _between(bound), size=8.5, color=INK, ha="right", va="center",
            transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.set_axis_off()


def percent(share: float) -> str:
    """With one digit, or two where one would round to all."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return "100 %" if share == 1 else f"{100 * share:.{1 if share < 0.9995 else 2}f} %"


def _between(bound: int) -> str:
    """The lengths from above half of `bound` to it."""
    return str(bound) if bound <= 2 else f"{_short(bound // 2 + 1)}–{_short(bound)}"


def _short(n: int) -> str:
    return str(n) if n < 1000 else f"{n / 1000:.0f}k" if n < 10**6 else f"{n / 10**6:.0f}M"


def _plain(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(labelsize=8.5, labelcolor=INK, color=FAINT, length=3)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, size=10, weight="bold", color=INK, loc="left", y=1, pad=6)


def _remark(axes: Axes, text: str) -> None:
    axes.set_title(text, size=8, color=FAINT, loc="right", y=1, pad=6)

"""What became of every row, for report.json and for eyes.

In: the rows that are done and those that are not. Out: the document, and lines of text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_exp.regenerate.kept import Kept
from dflash_exp.regenerate.rewriting import Failed

SHOWN = 20
"""Rows that are named in a terminal; report.json names all."""


@dataclass
class Tally:
    """Rows as they are read and done."""

    n_rows: int = 0
    failed: list[Failed] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Where each is, and why it is no conversation with a turn to rewrite."""
    is_read: bool = False
    """Whether the input was read to its end."""

    def is_complete(self, kept: Kept) -> bool:
        """Whether every row is kept, failed or skipped."""
        return self.is_read and self.n_rows == len(kept) + len(self.failed) + len(self.skipped)


def document(tally: Tally, kept: Kept, left_out_files: Sequence[str]) -> dict[str, Any]:
    """report.json."""
    failed = sorted(tally.failed, key=lambda one: one.row.number)
    return {
        "complete": tally.is_complete(kept),
        "rows": tally.n_rows,
        "kept": len(kept),
        "failed": [{"row": one.row.number, "where": one.row.where, "why": one.why} for one in failed],
        "skipped": [{"where": where, "why": why} for where, why in tally.skipped],
        "tokens": kept.tokens,
        "rows_of_unknown_tokens": kept.n_rows_of_unknown_tokens,
        "finish_reasons": dict(sorted(kept.finish_reasons.items())),
        "left_out_files": list(left_out_files),
    }


def lines(said: dict[str, Any]) -> list[str]:
    """The same in a terminal."""
    counts = f"{said['kept']:,} kept, {len(said['failed']):,} failed, {len(said['skipped']):,} skipped"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in said["finish_reasons"].items())
    shown = [f"{said['rows']:,} rows: {counts}"]
    if reasons:
        shown.append(f"{said['tokens']:,} tokens generated; turns by finish reason: {reasons}")
    for fate in ("failed", "skipped"):
        shown += [f"  {fate}: {one['where']}: {one['why']}" for one in said[fate][:SHOWN]]
        if len(said[fate]) > SHOWN:
            shown.append(f"  and {len(said[fate]) - SHOWN:,} more, in report.json")
    if said["left_out_files"]:
        shown.append(
            f"{len(said['left_out_files'])} files of other kinds left out, the first {said['left_out_files'][0]}"
        )
    return shown

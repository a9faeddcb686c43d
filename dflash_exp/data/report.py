"""What was prepared, for eyes: the fate of every row, lengths, and one conversation with what is supervised in it.

In: a `Tally` and the store. Out: lines of text, and what report.json says.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from dflash_exp.data.assemble import Tally
from dflash_exp.data.part import Fate
from dflash_exp.data.store import Conversations

BAR = 40
"""Characters of the longest bar of the histogram."""
OPEN, CLOSE = "⟦", "⟧"
"""Around what is supervised."""
PREVIEW_TOKENS = 400


def document(tally: Tally, left_out_files: Sequence[str]) -> dict[str, Any]:
    """report.json."""
    return {
        "rows": tally.n_rows,
        "fates": {fate.value: tally.fates[fate] for fate in Fate},
        "malformed": [{"where": where, "why": why} for where, why in tally.malformed],
        "splits": {
            split: {
                "sequences": tally.sequences[split],
                "tokens": tally.tokens[split],
                "supervised_tokens": tally.supervised[split],
            }
            for split in tally.sequences
        },
        "lengths_up_to": {str(edge): tally.lengths[edge] for edge in sorted(tally.lengths)},
        "left_out_files": list(left_out_files),
    }


def lines(tally: Tally, left_out_files: Sequence[str]) -> list[str]:
    """The report in a terminal."""
    said = [f"{tally.n_rows:,} rows: " + ", ".join(_fates(tally))]
    said += [f"  malformed: {where}: {why}" for where, why in tally.malformed]
    if tally.fates[Fate.MALFORMED] > len(tally.malformed):
        said.append(f"  and {tally.fates[Fate.MALFORMED] - len(tally.malformed):,} more, in left_out.jsonl")
    if left_out_files:
        said.append(f"{len(left_out_files)} files of other kinds left out, the first {left_out_files[0]}")
    for split, n in tally.sequences.items():
        n_tokens, supervised = tally.tokens[split], tally.supervised[split]
        said.append(f"{split:<8}{n:>10,} conversations {n_tokens:>13,} tokens, {supervised:,} supervised")
    return said + _histogram(tally.lengths)


def preview(conversations: Conversations, decode: Callable[[list[int]], str]) -> str:
    """The first conversation of a split, with its supervised tokens in marks; "" where there is none."""
    if not len(conversations.rows):
        return ""
    row = int(conversations.rows[0])
    tokens, supervised = conversations.tokens(row), conversations.supervised(row)
    shown = ""
    for is_supervised, places in groupby(range(min(len(tokens), PREVIEW_TOKENS)), lambda i: bool(supervised[i])):
        text = decode(tokens[np.array(list(places))].tolist())
        shown += f"{OPEN}{text}{CLOSE}" if is_supervised else text
    more = len(tokens) - PREVIEW_TOKENS
    return f"{shown} ... and {more:,} tokens more" if more > 0 else shown


def _fates(tally: Tally) -> list[str]:
    """Those that some row had, and always how many were kept."""
    shown = [fate for fate in Fate if tally.fates[fate] or fate is Fate.KEPT]
    return [f"{tally.fates[fate]:,} {fate.value.replace('_', ' ')}" for fate in shown]


def _histogram(lengths: Counter[int]) -> list[str]:
    most = max(lengths.values(), default=0)
    return [
        f"{'up to':>9}{edge:>9,} tokens {n:>9,} {'█' * max(1, round(BAR * n / most))}"
        for edge, n in sorted(lengths.items())
    ]

"""One chunk of raw rows becomes one part: an Arrow file of tokens, with a word on every row that is not in it.

In: a `Chunk`. Out: `parts/00000012.arrow`, whole or not there, which says what it was made from. A part needs no other
part, so parts are made by several processes, and those that are there are not made again.
"""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa

from dflash_exp.data.conversation import Conversation, Empty, Malformed, conversation
from dflash_exp.data.preparation import Preparation, Thinking
from dflash_exp.data.rows import values
from dflash_exp.data.sources import Chunk
from dflash_exp.data.template import Encoded, Encoder, Inexact


class Fate(StrEnum):
    """What becomes of a row: exactly one of these."""

    KEPT = "kept"
    TOO_LONG = "too_long"
    TOO_SHORT = "too_short"
    EMPTY = "empty"
    MALFORMED = "malformed"
    DUPLICATE = "duplicate"
    INEXACT = "inexact"
    """The template does not show which tokens are the assistant's."""
    WITHOUT_THINKING = "without_thinking"


@dataclass(frozen=True)
class LeftOut:
    """A row that is not in the store."""

    fate: Fate
    where: str
    """File and line."""
    why: str


@dataclass(frozen=True)
class _Read:
    """A row that is a conversation."""

    where: str
    conversation: Conversation


@dataclass(frozen=True)
class Recipe:
    """All that a part depends on beside its chunk."""

    settings: Preparation
    vocab_size: int


def part_path(folder: Path, index: int) -> Path:
    """Where a chunk's part lies."""
    return folder / f"{index:08d}.arrow"


def token_type(vocab_size: int) -> pa.DataType:
    """Two bytes where the vocabulary allows it."""
    return pa.uint16() if vocab_size <= 2**16 else pa.int32()


def write_part(folder: Path, chunk: Chunk, encoder: Encoder, recipe: Recipe) -> None:
    """Make a chunk's part. Raises ValueError for a token that is not the vocabulary's."""
    read_rows = list(values(chunk))
    sorted_out = [_sorted_out(where, value, recipe.settings) for where, value in read_rows]
    read = [one for one in sorted_out if isinstance(one, _Read)]
    left_out = [one for one in sorted_out if isinstance(one, LeftOut)]
    rows: list[tuple[_Read, Encoded]] = []
    for one, encoded in zip(read, encoder.encode([one.conversation for one in read]), strict=True):
        judged = _judged(one, encoded, recipe.settings)
        if isinstance(judged, LeftOut):
            left_out.append(judged)
        else:
            rows.append((one, judged))
    said = {"n_rows": len(read_rows), "left_out": [[one.fate, one.where, one.why] for one in left_out]}
    table = _table(rows, recipe.vocab_size).replace_schema_metadata({"part": json.dumps(said)})
    _write(part_path(folder, chunk.index), table)


def _sorted_out(where: str, value: object, settings: Preparation) -> _Read | LeftOut:
    try:
        if isinstance(value, ValueError):
            raise value
        found = conversation(value)
        treated = found.treated(settings.thinking)
    except Malformed as error:
        return LeftOut(Fate.MALFORMED, where, str(error))
    except Empty as error:
        return LeftOut(Fate.EMPTY, where, str(error))
    if settings.thinking is Thinking.REQUIRE and not found.thinks:
        return LeftOut(Fate.WITHOUT_THINKING, where, "the last assistant turn has no reasoning")
    return _Read(where, treated)


def _judged(read: _Read, encoded: Encoded | Malformed | Inexact, settings: Preparation) -> Encoded | LeftOut:
    if isinstance(encoded, ValueError):
        fate = Fate.INEXACT if isinstance(encoded, Inexact) else Fate.MALFORMED
        return LeftOut(fate, read.where, str(encoded))
    n_tokens = len(encoded.tokens)
    if not encoded.supervised.any():
        return LeftOut(Fate.EMPTY, read.where, "no token is the assistant's")
    if n_tokens < settings.min_tokens:
        return LeftOut(Fate.TOO_SHORT, read.where, f"{n_tokens} tokens")
    if settings.max_tokens is not None and n_tokens > settings.max_tokens:
        return LeftOut(Fate.TOO_LONG, read.where, f"{n_tokens} tokens")
    return encoded


def _table(rows: Sequence[tuple[_Read, Encoded]], vocab_size: int) -> pa.Table:
    encoded = [row for _, row in rows]
    for read, row in rows:
        if row.tokens.max() >= vocab_size:
            raise ValueError(
                f"the target's tokenizer must give ids below {vocab_size}, its vocabulary, got {row.tokens.max()} for "
                f"{read.where}; take the tokenizer that came with the target"
            )
    offsets = pa.array(np.cumsum([0] + [len(row.tokens) for row in encoded]), pa.int32())
    tokens = np.concatenate([np.zeros(0, np.int32), *(row.tokens for row in encoded)])
    supervised = np.concatenate([np.zeros(0, bool), *(row.supervised for row in encoded)])
    return pa.table(
        {
            "tokens": pa.ListArray.from_arrays(offsets, pa.array(tokens).cast(token_type(vocab_size))),
            "supervised": pa.ListArray.from_arrays(offsets, pa.array(supervised.view(np.uint8))),
            "source": pa.array([read.where for read, _ in rows], pa.string()),
            "ending": pa.array([row.ending for row in encoded], pa.string()),
            "digest": pa.array([read.conversation.digest() for read, _ in rows], pa.uint64()),
        }
    )


def _write(path: Path, table: pa.Table) -> None:
    """Whole or not there, also after a power cut."""
    handle, unfinished = tempfile.mkstemp(".unfinished", f".{path.name}-", path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table.combine_chunks())
            file.flush()
            os.fsync(handle)
        os.replace(unfinished, path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise


def is_whole(path: Path) -> bool:
    """Whether a part is there and can be opened."""
    try:
        with pa.memory_map(str(path)) as file:
            return pa.ipc.open_file(file).num_record_batches <= 1
    except (OSError, pa.ArrowInvalid):
        return False

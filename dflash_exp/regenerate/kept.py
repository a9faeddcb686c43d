"""The rows that are done, on disk: a journal in the order in which they were done, then one file in the input's.

In: records of rewritten rows. Out: `conversations.jsonl`, whole or not there. A row is in the journal as soon as it is
done, so that no stop loses it; a line that a kill has cut is taken off and its row made again. Memory: a number and an
offset a row, some 100 bytes.
"""

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from dflash_exp.data.regeneration import CONVERSATIONS, JOURNAL
from dflash_exp.durable import remove_unfinished, write_file


class Kept:
    """The rows of a folder, for one process at a time."""

    def __init__(self, folder: Path) -> None:
        """Raises ValueError, one line, where another process is at work, or conversations.jsonl is damaged."""
        self._folder = folder
        self._journal = (folder / JOURNAL).open("a+b")
        self._lock()
        remove_unfinished(folder)
        self.finish_reasons: Counter[str] = Counter()
        self.tokens = 0
        self.n_rows_of_unknown_tokens = 0
        whole = folder / CONVERSATIONS
        self._whole = dict(self._read(whole)) if whole.is_file() else {}
        if whole.is_file() and self._end != whole.stat().st_size:
            raise ValueError(
                f"{whole} must be as it was written, it is not from byte {self._end} on; restore it, or take another "
                "regenerate.out"
            )
        self._new = dict(self._read(folder / JOURNAL))
        self.n_bytes_cut = (folder / JOURNAL).stat().st_size - self._end
        """Of a line that a kill had cut."""
        self._journal.truncate(self._end)

    def __contains__(self, row: int) -> bool:
        return row in self._whole or row in self._new

    def __len__(self) -> int:
        return len(self._whole) + len(self._new)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a row's record behind the others: a line, which outlives this process."""
        assert record["row"] not in self, "a row is rewritten once"
        self._new[record["row"]] = self._journal.seek(0, os.SEEK_END)
        self._journal.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._journal.flush()
        self._count(record)

    def assemble(self) -> None:
        """conversations.jsonl, with every row that is done in the input's order; the journal is no longer needed."""
        if self._new or not (self._folder / CONVERSATIONS).is_file():
            write_file(self._folder / CONVERSATIONS, self._merge)
        (self._folder / JOURNAL).unlink()

    def close(self) -> None:
        """Let other processes in; what is written outlives a power cut. A journal without a row is removed."""
        os.fsync(self._journal.fileno())
        if not self._new:
            (self._folder / JOURNAL).unlink(missing_ok=True)
        self._journal.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"regenerate.out must not be in use, another process writes into {self._folder}; wait for it, or name "
                "another folder"
            ) from error
        except OSError:
            pass  # a file system without locks: it is the user's to see that there is one process

    def _read(self, path: Path) -> Iterator[tuple[int, int]]:
        """Row and offset of every whole line, up to the first that is not; `_end` is behind the last one."""
        self._end = 0
        with path.open("rb") as file:
            for line in file:
                record = _record(line)
                if record is None:
                    return
                yield record["row"], self._end
                self._end += len(line)
                self._count(record)

    def _count(self, record: Mapping[str, Any]) -> None:
        self.finish_reasons.update(record["finish_reasons"])
        self.tokens += record["tokens"] or 0
        self.n_rows_of_unknown_tokens += record["tokens"] is None

    def _merge(self, out: BinaryIO) -> None:
        before = self._folder / CONVERSATIONS
        with (before if before.is_file() else Path(os.devnull)).open("rb") as whole:
            for row in sorted([*self._whole, *self._new]):
                file, offset = (whole, self._whole[row]) if row in self._whole else (self._journal, self._new[row])
                file.seek(offset)
                out.write(file.readline())


def _record(line: bytes) -> dict[str, Any] | None:
    """What a whole line holds; None for any other."""
    try:
        held = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return held if isinstance(held, dict) and {"row", "tokens", "finish_reasons"} <= held.keys() else None

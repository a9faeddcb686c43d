"""Output that outlives its reader and a full disk.

What cannot be written is dropped, and the next line is tried again: a log that a closed pipe or a full disk cuts short
must not end what it tells of. What is the answer itself (`--json`, `--help`) goes to stdout as it is, and fails there.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class LastingFile(io.FileIO):
    """A file whose writes always succeed."""

    def write(self, data: Any) -> int:
        """What cannot be written counts as written."""
        try:
            return super().write(data) or len(data)  # None: a pipe that does not wait, and is full
        except OSError:
            return len(data)


def text_of(file: LastingFile, encoding: str) -> TextIO:
    """Lines of text into it, at once; a character that the encoding lacks is replaced."""
    return io.TextIOWrapper(io.BufferedWriter(file), encoding, errors="replace", line_buffering=True)


def lasting(stream: TextIO | None) -> TextIO | None:
    """A stream to the same place whose writes always succeed; itself where it is no file's (a notebook's)."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        handle = stream.fileno()
    except (OSError, ValueError):
        return stream
    return text_of(LastingFile(handle, "w", closefd=False), stream.encoding)


@contextmanager
def lasting_stderr() -> Iterator[None]:
    """sys.stderr lasts; a process that has none (`2>&-`) gets one that leads nowhere, as print would take stdout."""
    before = sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        sys.stderr = lasting(before) or nowhere
        try:
            yield
        finally:
            sys.stderr = before


def replace_what_stdout_lacks() -> None:
    """A character that stdout's encoding lacks is printed as `?`, whoever prints."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")

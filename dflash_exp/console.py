"""Where lines for the user go: rich's console, which here outlives its reader and a full disk."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from dflash_exp.lasting import LastingFile, lasting, text_of

WIDE = 200
"""Columns of a pipe or a log, which rich takes for 80, and cuts tables to that."""


class LastingConsole(Console):
    """On stdout. A line that cannot be written is lost, and nothing else; rich would end the process."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(file=lasting(sys.stdout), quiet=quiet)
        if not self.file.isatty() and "COLUMNS" not in os.environ:
            self.width = WIDE

    def say(self, line: str) -> None:
        """A line as it is: brackets are no markup, and it wraps where the terminal does."""
        self.print(line, highlight=False, markup=False, soft_wrap=True)

    def write_to(self, path: Path) -> None:
        """From here on into a file, line by line, if there can be one; what was quiet no longer is."""
        with suppress(OSError):
            self.file, self.quiet = text_of(LastingFile(path, "a"), "utf-8"), False

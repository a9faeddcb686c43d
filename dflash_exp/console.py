"""Where lines for the user go: rich's console, which here outlives its reader."""

from pathlib import Path

from rich.console import Console


class LastingConsole(Console):
    """A reader that goes away (`| head`, a lost connection) silences it; rich would end the process."""

    def say(self, line: str) -> None:
        """A line as it is: brackets are no markup, and it wraps where the terminal does."""
        self.print(line, highlight=False, markup=False, soft_wrap=True)

    def write_to(self, path: Path) -> None:
        """From here on into a file, line by line; what was quiet no longer is."""
        self.file, self.quiet = path.open("a", encoding="utf-8", buffering=1), False

    def on_broken_pipe(self) -> None:
        self.quiet = True

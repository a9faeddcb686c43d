"""Where lines for the user go: rich's console, which here outlives its reader."""

from rich.console import Console


class LastingConsole(Console):
    """A reader that goes away (`| head`, a lost connection) silences it; rich would end the process."""

    def on_broken_pipe(self) -> None:
        self.quiet = True

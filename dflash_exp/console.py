"""Where lines for the user go: rich's console, which here outlives its reader."""

from rich.console import Console


class LastingConsole(Console):
    """A reader that goes away (`| head`, a lost connection) silences it; rich would end the process."""

    def say(self, line: str) -> None:
        """A line as it is: brackets are no markup, and it wraps where the terminal does."""
        self.print(line, highlight=False, markup=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True

"""Saying so when kernels are compiled: once a machine, some seconds in which nothing else would be seen.

The plan prints nothing; the caller hands in what does. Numba tells of every compilation, not of a load from its cache,
so kernels of any module count, and a warm start is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE = "compiling the plan kernels (once)"


@contextmanager
def announced(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, `say(LINE)` is called as the first kernel begins to compile, and not at all where none has to.

    Imports numba (0.4 s).
    """
    from numba.core.event import Event, Listener, install_listener

    class FirstCompilation(Listener):
        told = False

        def on_start(self, event: Event) -> None:
            if not self.told:
                self.told = True
                say(LINE)

        def on_end(self, event: Event) -> None:
            pass

    with install_listener("numba:compile", FirstCompilation()):
        yield
